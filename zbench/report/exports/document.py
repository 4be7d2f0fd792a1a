"""The JSON of a comparison: everything, as plain values; `zbench compare --json` prints it."""

import json
import math
from collections.abc import Sequence
from typing import Any

from zbench.analysis.compare import Comparison, PairedData
from zbench.analysis.decision import Decision
from zbench.analysis.rows import Row
from zbench.record.summary import ConfigSummary
from zbench.spec.metrics import STEP_TIMES

_SOURCE = ("name", "run_ids", "sweep", "fingerprint", "commit")
_TRIAL = ("trial_id", "axes", "outcome", "verdict")
_EXACT = ("metric", "base", "head", "change", "answer")
_DECISION = ("answer", "change", "low", "high", "p_value", "n_base", "n_head", "paired", "needed", "reason",
             "faster", "detectable")  # fmt: skip


def render(comparison: Comparison) -> str:
    """Return the document as text."""
    return json.dumps(document(comparison), indent=2)


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison; changes and thresholds are fractions, times seconds, sizes bytes."""
    settings = comparison.settings
    return {
        "schema_version": 1,
        "mode": "stored" if comparison.paired is None else "paired",
        "base": _picked(comparison.base, _SOURCE),
        "head": _picked(comparison.head, _SOURCE),
        "across": bool(comparison.unlike),
        "unlike": list(comparison.unlike),
        "alpha": settings.alpha,
        "thresholds": dict(settings.thresholds),
        "fail_on": sorted(settings.fail_on),
        "trials": list(map(row, comparison.rows)),
        "missing": [_picked(trial, _TRIAL) for trial in comparison.missing],
        "added": [_picked(trial, _TRIAL) for trial in comparison.added],
        "geometric_mean_change": comparison.geometric_mean,
        "worst": comparison.worst.base.trial_id if comparison.worst else None,
        "best": comparison.best.base.trial_id if comparison.best else None,
        "paired": _paired(comparison.paired) if comparison.paired else None,
        "no_yardstick": comparison.no_yardstick or None,
        "warnings": comparison.warnings,
        "exit_code": int(comparison.exit_code),
    }


def _paired(data: PairedData) -> dict[str, Any]:
    return {
        "block_log_ratios": {name: list(values) for name, values in data.differences.items()},
        "exact_only": data.exact_only,
        "stopped": data.stopped or None,
        "drift": data.drift,
    }


def row(row: Row) -> dict[str, Any]:
    """Return one configuration."""
    return {
        "trial_id": row.base.trial_id,
        "axes": dict(row.base.axes),
        "answer": row.answer,
        "base": _figures(row.base),
        "head": _figures(row.head),
        "step_time": _decision(row.step_time) if row.step_time else None,
        "exact": [_picked(change, _EXACT) for change in row.exact],
        "exact_details": [_picked(change, _EXACT) for change in row.details],
    }


def _figures(trial: ConfigSummary) -> dict[str, Any]:
    numbers = {name: trial.number(name) for name in (*STEP_TIMES, "tokens_per_s")}
    return _picked(trial, ("outcome", "verdict", "diagnosis")) | {"processes": len(trial.ok)} | numbers


def _decision(decision: Decision) -> dict[str, Any]:
    logs = {key: _fraction(getattr(decision, key)) for key in ("low", "high", "detectable")}
    return _picked(decision, _DECISION) | logs


def _picked(thing: object, keys: Sequence[str]) -> dict[str, Any]:
    return {key: getattr(thing, key) for key in keys}


def _fraction(log_ratio: float | None) -> float | None:
    return math.expm1(log_ratio) if log_ratio is not None and math.isfinite(log_ratio) else None
