"""Figures that need no test: allocator peaks and traffic are alike in every repeat, so any change is real."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from zbench.record.summary import ConfigSummary

ExactAnswer = Literal["same", "lower", "higher", "regression", "varies", "estimated", "absent"]

EXACT_METRICS = ("peak_device_bytes", "peak_host_bytes", "traffic_bytes", "traffic_calls")


@dataclass(frozen=True, slots=True)
class ExactChange:
    """One exact figure in base and head; smaller is better for all of them.

    `regression` is higher by more than its threshold; `higher` is higher within it. `varies`: repeats
    of one side differ, so the figure is not exact; `estimated`: it could not be counted. Neither is decided.
    """

    metric: str
    base: int | None
    head: int | None
    answer: ExactAnswer

    @property
    def change(self) -> float | None:
        """Return the change as a fraction of base; None where there is no base to divide by."""
        if not self.base or self.head is None:
            return None
        return self.head / self.base - 1


def exact_changes(
    base: ConfigSummary, head: ConfigSummary, thresholds: Mapping[str, float]
) -> tuple[ExactChange, ...]:
    """Return the change of every exact metric; a threshold is a fraction, 0 where none is given."""
    counted = all(r.memory.exact for trial in (base, head) for r in trial.ok if r.memory is not None)
    return tuple(
        _change(metric, base, head, counted, thresholds.get(metric, 0.0)) for metric in EXACT_METRICS
    )


def exact_values(trial: ConfigSummary, metric: str) -> list[int]:
    """Return an exact metric of each finished repeat that has it; traffic of one step, all collectives."""
    if not metric.startswith("traffic_"):
        return [int(value) for value in trial.values(metric)]
    field = metric.removeprefix("traffic_")
    timed = (record for record in trial.ok if record.timing is not None)
    return [sum(getattr(one, field) for one in record.traffic.values()) for record in timed]


def _change(
    metric: str, base: ConfigSummary, head: ConfigSummary, counted: bool, threshold: float
) -> ExactChange:
    before, after = exact_values(base, metric), exact_values(head, metric)
    exact = counted or metric.startswith("traffic_")
    answer: ExactAnswer = _answer(before, after, exact, threshold) if before and after else "absent"
    return ExactChange(metric, max(before, default=None), max(after, default=None), answer)


def _answer(base: list[int], head: list[int], exact: bool, threshold: float) -> ExactAnswer:
    if not exact:
        return "estimated"
    if len(set(base)) > 1 or len(set(head)) > 1:
        return "varies"
    if head[0] > base[0] * (1 + threshold):
        return "regression"
    return "same" if head[0] == base[0] else "higher" if head[0] > base[0] else "lower"
