"""Figures that need no test: allocator peaks and traffic are alike in every repeat, so any change is real."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from zbench.analysis.trials import TrialResults

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
    base: TrialResults, head: TrialResults, thresholds: Mapping[str, float]
) -> tuple[ExactChange, ...]:
    """Return the change of every exact metric; a threshold is a fraction, 0 where none is given."""
    before, after = _figures(base), _figures(head)
    return tuple(
        _change(metric, before[metric], after[metric], thresholds.get(metric, 0.0))
        for metric in EXACT_METRICS
    )


def _figures(trial: TrialResults) -> dict[str, tuple[list[int], bool]]:
    calls, payload = trial.traffic()
    return {
        "peak_device_bytes": trial.memory("peak_device_bytes"),
        "peak_host_bytes": trial.memory("peak_host_bytes"),
        "traffic_bytes": (payload, True),
        "traffic_calls": (calls, True),
    }


def _change(
    metric: str, before: tuple[list[int], bool], after: tuple[list[int], bool], threshold: float
) -> ExactChange:
    (base, base_exact), (head, head_exact) = before, after
    if not base or not head:
        return ExactChange(metric, max(base, default=None), max(head, default=None), "absent")
    low, high = max(base), max(head)
    return ExactChange(metric, low, high, _answer(base, head, base_exact and head_exact, threshold))


def _answer(base: list[int], head: list[int], exact: bool, threshold: float) -> ExactAnswer:
    if not exact:
        return "estimated"
    if len(set(base)) > 1 or len(set(head)) > 1:
        return "varies"
    if head[0] > base[0] * (1 + threshold):
        return "regression"
    return "same" if head[0] == base[0] else "higher" if head[0] > base[0] else "lower"
