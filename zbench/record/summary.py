"""From records to one summary a configuration. Pure functions."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zbench.record.record import Correctness, Failure, Outcome, Record, VerdictName
from zbench.spec.keys import resolve_key, value_at
from zbench.spec.metrics import METRICS, RATES, VERDICTS, Constraint, Goal, metric_named
from zbench.spec.sweep import ObjectiveSpec

CORRECT: frozenset[VerdictName] = frozenset({"identical", "equivalent"})
_RATES = ("1/s", "TFLOP/s")
_WORST_LAST: tuple[Outcome, ...] = ("ok", "invalid", "timeout", "oom", "crashed")


@dataclass(frozen=True)
class ConfigSummary:
    """All repeats of one configuration, in the order of their repeat numbers."""

    trial_id: str
    axes: dict[str, Any]
    config: dict[str, Any]
    records: tuple[Record, ...]

    @cached_property
    def ok(self) -> tuple[Record, ...]:
        """The successful repeats."""
        return tuple(record for record in self.records if record.outcome == "ok")

    @property
    def outcome(self) -> Outcome:
        """`ok` only if every repeat is; otherwise the worst."""
        return max((record.outcome for record in self.records), key=_WORST_LAST.index)

    @property
    def error(self) -> Failure | None:
        """Why a repeat with the worst outcome failed."""
        return next(
            (r.error for r in self.records if r.outcome == self.outcome and r.error is not None), None
        )

    @property
    def verdict(self) -> VerdictName:
        """The worst verdict of all successful repeats; `unchecked` if there is none."""
        return min((r.correctness.verdict for r in self.ok), key=VERDICTS.index, default="unchecked")

    @property
    def not_checked(self) -> list[str]:
        """What some repeat could not verify: `update not checked`, `scale not checked`."""
        parts = dict.fromkeys(part for record in self.ok for part in record.correctness.not_checked)
        return [f"{part} not checked" for part in parts]

    @property
    def diagnosis(self) -> str | None:
        """What is wrong, of the repeat with the worst verdict; else what was not checked."""
        worst = (record.correctness for record in self.ok if record.correctness.verdict == self.verdict)
        texts = (correctness.diagnosis for correctness in worst if correctness.diagnosis)
        return next(texts, None) or ", ".join(self.not_checked) or None

    @property
    def uncovered(self) -> str:
        """`, 40 of 60 steps` if the verdict covers fewer steps than were run; else nothing."""
        judged = [one.correctness for one in self.ok if one.correctness.verdict == "equivalent"]
        covered = [(one.checked_steps, one.steps) for one in judged if one.checked_steps is not None]
        if self.verdict != "equivalent" or not covered:
            return ""
        least, steps = min(covered)
        return f", {least} of {steps} steps" if least != steps else ""

    @property
    def farthest(self) -> Correctness:
        """The correctness of the successful repeat that is farthest from the reference."""
        return max(self.ok, key=lambda record: record.correctness.error_ratio or 0).correctness

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase of a step, the median over repeats; 0 for a repeat that lacks it."""
        repeats = [record.timing.phases for record in self.ok if record.timing is not None]
        names = dict.fromkeys(name for phases in repeats for name in phases)
        return {name: statistics.median(phases.get(name, 0.0) for phases in repeats) for name in names}

    @property
    def is_unjudged(self) -> bool:
        """Whether `verify.mode` is full and there is no verdict, after a NaN loss or a failed reference."""
        mode = (self.config.get("verify") or {}).get("mode")
        return bool(self.ok) and mode == "full" and self.verdict == "unchecked"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each distinct warning of any repeat, and what disturbed it, once."""
        texts = list[str]()
        for record in self.records:
            disturbance = record.disturbance
            effects = disturbance.effects() if disturbance is not None else {}
            texts += [*record.warnings, *(f"{effect}: {size}" for effect, size in effects.items())]
        return tuple(dict.fromkeys(texts))

    def metric(self, name: str) -> float | str | None:
        """Return a metric of `zbench.spec.metrics` over the repeats that ended well, None where none has it.

        Times are the median over repeats, rates the work over the mean step (so that the two agree); bytes,
        differences and the slowest step the largest; the verdict the worst.
        """
        metric = metric_named(name)
        if metric.unit == "verdict":
            return self.verdict
        values = self.values(name)
        if not values:
            return None
        if metric.unit in _RATES:
            return self._rate(name)
        is_largest = metric.unit in ("bytes", "ratio") or name == "worst_step_s"
        return max(values) if is_largest else statistics.median(values)

    def _rate(self, name: str) -> float:
        """Return the work of one step over the step time, which is the mean of each repeat's steps.

        A mean of rates would be another figure: two repeats of 10 and 100 ms do 18 steps a second, not 55.
        """
        metric = metric_named(name)
        timed = [record for record in self.ok if metric.read(record) is not None]
        steps = [record.timing.mean_step_s for record in timed if record.timing is not None]
        work = [metric.read(record) * step for record, step in zip(timed, steps, strict=True)]
        seconds = statistics.median(steps)
        return float(statistics.median(work) / seconds) if seconds else math.nan

    def number(self, name: str) -> float | None:
        """Return `metric(name)` of a metric that is a number."""
        value = self.metric(name)
        return value if isinstance(value, int | float) else None

    def values(self, name: str) -> list[float]:
        """Return a numeric metric of each repeat that ended well and has it."""
        figures = (metric_named(name).read(record) for record in self.ok)
        return [value for value in figures if isinstance(value, int | float)]

    def spread(self, name: str) -> float | None:
        """Return half the range of a metric over repeats, as a share of its median; None for one repeat."""
        values = self.values(name)
        middle = statistics.median(values) if len(values) > 1 else 0
        return (max(values) - min(values)) / 2 / abs(middle) if middle else None


def summarize(records: Iterable[Record]) -> list[ConfigSummary]:
    """Return one summary a configuration, in the order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.trial_id, []).append(record)
    return [
        ConfigSummary(trial_id, group[0].axes, group[0].config, tuple(sorted(group, key=lambda r: r.repeat)))
        for trial_id, group in groups.items()
    ]


def is_incorrect(trial: ConfigSummary) -> bool:
    """Whether a trial's training step was proved to differ from the reference's."""
    return trial.verdict in ("drifted", "wrong")


def has_failed(one: Record | ConfigSummary) -> bool:
    """Whether a trial failed; one that a search ended, because it was slow, did not."""
    pruned = one.error is not None and one.error.kind == "pruned"
    return one.outcome in ("oom", "timeout", "crashed") and not pruned


def obstacles(summary: ConfigSummary, objective: ObjectiveSpec) -> list[str]:
    """Return why a configuration cannot be the best; empty if it is feasible and correct."""
    if summary.outcome != "ok":
        return [summary.outcome]
    reasons: list[str] = summary.not_checked if summary.verdict in CORRECT else [summary.verdict]
    for constraint in unmet_constraints(summary, objective):
        if constraint.metric != "verdict" or not reasons:
            value = summary.metric(constraint.metric)
            reasons.append(f"{constraint} (has {METRICS[constraint.metric].format(value)})")
    return reasons


def unmet_constraints(summary: ConfigSummary, objective: ObjectiveSpec) -> list[Constraint]:
    """Return the constraints that a successful configuration does not meet."""
    constraints = objective.constraints if summary.ok else ()
    return [one for one in constraints if not one.holds(summary.metric(one.metric))]


def cost(summary: ConfigSummary, goal: Goal) -> float:
    """Return the goal's metric so that less is better; infinite where there is no finite figure."""
    value = summary.number(goal.metric)
    if value is None or not math.isfinite(value):
        return float("inf")
    return -value if goal.direction == "maximize" else value


def known_rate(trials: Iterable[ConfigSummary]) -> str:
    """Return the first of RATES that every finished and timed repeat has."""
    timings = [record.timing for trial in trials for record in trial.ok if record.timing is not None]
    return next(name for name in RATES if all(getattr(timing, name) is not None for timing in timings))


def first_goal(trials: Iterable[ConfigSummary], objective: ObjectiveSpec) -> Goal:
    """Return the objective's first goal; tokens a second stand for the rate that the workload has."""
    goal = objective.goals[0]
    return Goal(known_rate(trials), goal.direction) if goal.metric == "tokens_per_s" else goal


def point(record: Record | ConfigSummary, keys: Iterable[str]) -> dict[str, Any]:
    """Return the values of all `keys`, from a point's axes or else from its configuration."""
    return {key: record.axes[key] if key in record.axes else _held(record.config, key) for key in keys}


def varied_keys(summaries: Sequence[ConfigSummary]) -> list[str]:
    """Return every axis of any configuration, in the sweep's order."""
    return list(dict.fromkeys(key for summary in summaries for key in summary.axes))


def _held(config: Mapping[str, Any], key: str) -> Any:
    workload = config.get("workload") or {}
    try:
        return value_at(config, resolve_key(key, workload.get("parameters") or {}))
    except ValueError:
        return None
