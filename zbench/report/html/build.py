"""From results to a Report: objective, best, order, and what a search left beside the records."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import rank
from zbench.analysis.trials import RunResults
from zbench.errors import UsageError
from zbench.report.html.content import Report
from zbench.report.table import ranked
from zbench.spec.load import recorded_objective
from zbench.spec.sweep import ObjectiveSpec, SweepSpec


def report_of(results: RunResults, comparison: Comparison | None = None) -> Report:
    """Return the report of results; a run directory's own objective ranks them, else tokens a second."""
    path = Path(results.source.path)
    objective = _objective(path)
    ordered = ranked(results.trials, objective)
    ranking = rank(ordered, objective)
    winner = next((summary for summary in ordered if summary.trial_id == ranking.recommended), None)
    return Report(results.source, ordered, objective, winner, comparison, importance_in(path), ranking)


def _objective(path: Path) -> ObjectiveSpec:
    file = path / "spec.yaml"
    return recorded_objective(file) if file.is_file() else SweepSpec().objective


def importance_in(path: Path) -> dict[str, float]:
    """Return the share of each axis from a run's `search.json`; empty where no search was made."""
    file = path / "search.json"
    if not file.is_file():
        return {}
    try:
        shares: Any = json.loads(file.read_text(encoding="utf-8")).get("importance")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot read {file}: {error}; remove it to report without the search") from None
    if not isinstance(shares, Mapping):
        return {}
    return {str(axis): float(share) for axis, share in shares.items() if isinstance(share, int | float)}
