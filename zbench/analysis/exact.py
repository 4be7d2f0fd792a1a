"""Figures that need no test: bytes, calls and counts do not depend on the machine; any change is real."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary

ExactAnswer = Literal["same", "lower", "higher", "regression", "varies", "estimated", "absent"]

PEAKS = ("peak_device_bytes", "peak_host_bytes")
TRAFFIC = ("traffic_bytes", "traffic_calls")
COUNTS = ("allocations", "operators", "kernel_launches", "flops", "instructions")
"""What a record counts of one step (`Record.counts`); absent in records of older versions."""

EXACT_METRICS = (*PEAKS, *TRAFFIC, *COUNTS)
_REMAINDER = "activations"  # what is left of the peak: the peak itself decides of it


@dataclass(frozen=True, slots=True)
class ExactChange:
    """One exact figure in base and head; smaller is better for all of them.

    `regression`: head's smallest repeat lies above base's largest by more than the threshold; `higher` is
    higher within it. `varies`: repeats differ and overlap, or differ within the threshold; `estimated`: it
    could not be counted. Neither is decided.
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
    return tuple(
        _change(metric, base, head, thresholds.get(metric, 0.0), partial(_value, metric=metric))
        for metric in EXACT_METRICS
    )


def exact_details(
    base: ConfigSummary, head: ConfigSummary, thresholds: Mapping[str, float]
) -> tuple[ExactChange, ...]:
    """Return what changed behind the totals: `memory.<category>`, `traffic.<collective>.bytes` and `.calls`.

    A category of persistent bytes that grew is a regression of its own, though the peak did not move. Of
    collectives the totals decide: one may well replace another.
    """
    details = _details(base, head, thresholds)
    changes = (_change(name, base, head, threshold, read) for name, read, threshold in details)
    return tuple(change for change in changes if change.answer not in ("same", "absent"))


def exact_values(trial: ConfigSummary, metric: str) -> list[int]:
    """Return an exact metric of each finished repeat that has it; traffic of one step, all collectives."""
    return _values(trial, partial(_value, metric=metric))


Reader = Callable[[Record], int | None]


def _value(record: Record, metric: str) -> int | None:
    if metric in PEAKS:
        value = None if record.memory is None else getattr(record.memory, metric)
        return None if value is None else int(value)
    if metric in TRAFFIC:
        field = metric.removeprefix("traffic_")
        timed = record.timing is not None
        return sum(getattr(one, field) for one in record.traffic.values()) if timed else None
    return record.counts.get(metric)


def _details(
    base: ConfigSummary, head: ConfigSummary, thresholds: Mapping[str, float]
) -> Iterator[tuple[str, Reader, float]]:
    records = [*base.ok, *head.ok]
    categories = dict.fromkeys(key for r in records if r.memory is not None for key in r.memory.by_category)
    for category in categories:
        if category != _REMAINDER:
            threshold = thresholds.get("peak_device_bytes", 0.0)
            yield f"memory.{category}", partial(_category, name=category), threshold
    kinds = dict.fromkeys(key for r in records for key in r.traffic)
    for kind in kinds:
        for field in ("bytes", "calls"):
            yield f"traffic.{kind}.{field}", partial(_collective, kind=kind, field=field), float("inf")


def _category(record: Record, name: str) -> int | None:
    if record.memory is None or not record.memory.by_category:
        return None
    return record.memory.by_category.get(name, 0)


def _collective(record: Record, kind: str, field: str) -> int | None:
    if record.timing is None:
        return None
    return getattr(record.traffic[kind], field) if kind in record.traffic else 0


def _values(trial: ConfigSummary, read: Reader) -> list[int]:
    return [value for record in trial.ok if (value := read(record)) is not None]


def _change(
    metric: str, base: ConfigSummary, head: ConfigSummary, threshold: float, read: Reader
) -> ExactChange:
    before, after = _values(base, read), _values(head, read)
    largest = max(before, default=None), max(after, default=None)
    if not before or not after:
        return ExactChange(metric, *largest, "absent")
    is_memory = metric in PEAKS or metric.startswith("memory.")
    if is_memory and not (_counted(base) and _counted(head)):
        return ExactChange(metric, *largest, "estimated")
    return ExactChange(metric, *largest, _answer(before, after, threshold))


def _counted(trial: ConfigSummary) -> bool:
    return all(record.memory.exact for record in trial.ok if record.memory is not None)


def _answer(base: list[int], head: list[int], threshold: float) -> ExactAnswer:
    if min(head) > max(base) * (1 + threshold):  # of an infinite threshold that is never so
        return "regression"
    if len(set(base)) > 1 or len(set(head)) > 1:
        return "varies"
    return "lower" if head[0] < base[0] else "higher" if head[0] > base[0] else "same"
