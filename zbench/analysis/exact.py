"""Figures that need no test: bytes, calls and counts do not depend on the machine; any change is real."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary

ExactAnswer = Literal[
    "same", "lower", "higher", "regression", "suspected", "varies", "estimated", "unchecked", "absent"
]

PEAKS = ("peak_device_bytes", "peak_host_bytes")
TRAFFIC = ("traffic_bytes", "traffic_calls")
COUNTS = ("allocations", "operators", "kernel_launches", "flops", "instructions")
"""What a record counts of one step (`Record.counts`); absent in records of older versions."""

NEVER_NONE = (*PEAKS, *TRAFFIC, "operators", "flops", "instructions")
"""What no step does without, if it once did not: a figure that became 0 was not counted."""

EXACT_METRICS = (*PEAKS, *TRAFFIC, *COUNTS)
ESTIMATED_MARGIN = 0.5
"""The least threshold of bytes that a side could only estimate (in samples, or by the resident set)."""

RESIDENT = "peak_rss_bytes"
"""The resident set of a process, libraries and all: only what is above twice base's is looked at."""

WORK = "work_of_a_step"
"""Tokens (or samples) of one step: what a rate is the quotient of. One configuration does the same work."""

_REMAINDER = "activations"  # what is left of the peak: the peak itself decides of it


@dataclass(frozen=True, slots=True)
class ExactChange:
    """One exact figure in base and head; smaller is better for all of them.

    `regression`: most of head's repeats lie above base's largest by more than the threshold; `suspected`:
    some do; `higher` is higher within it. `varies`: repeats differ, and none lies above; `estimated`: it
    could not be counted, and is not above by a wide margin. `unchecked`: one side lacks it; `absent`: both
    do, or a side has no finished repeat.
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
    return tuple(_change(metric, base, head, thresholds.get(metric, 0.0)) for metric in EXACT_METRICS)


def exact_details(
    base: ConfigSummary, head: ConfigSummary, thresholds: Mapping[str, float]
) -> tuple[ExactChange, ...]:
    """Return what changed behind the totals: `memory.<category>`, `traffic.<collective>.bytes` and `.calls`.

    A category of persistent bytes that grew is a regression of its own, though the peak did not move. Of
    collectives the totals decide: one may well replace another. The resident set is listed where it is far
    larger, and the work of a step where it is not the same.
    """
    records = [*base.ok, *head.ok]
    categories = dict.fromkeys(key for r in records if r.memory is not None for key in r.memory.by_category)
    categories.pop(_REMAINDER, None)
    kinds = dict.fromkeys(key for record in records for key in record.traffic)
    names = [f"memory.{category}" for category in categories]
    changes = [_change(name, base, head, thresholds.get("peak_device_bytes", 0.0)) for name in names]
    names = [f"traffic.{kind}.{field}" for kind in kinds for field in ("bytes", "calls")]
    changes += [_change(name, base, head, math.inf) for name in names]
    resident = _change(RESIDENT, base, head, max(1.0, thresholds.get("peak_host_bytes", 0.0)))
    changes += [resident] if resident.answer in ("regression", "suspected") else []
    before, after = (exact_values(trial, WORK) for trial in (base, head))
    if before and after and (max(after) > 1.01 * max(before) or min(after) < 0.99 * min(before)):
        changes.append(ExactChange(WORK, min(before), min(after), "unchecked"))
    return tuple(change for change in changes if change.answer not in ("same", "absent"))


def exact_values(trial: ConfigSummary, metric: str) -> list[int]:
    """Return an exact metric of each finished repeat that has it; traffic of one step, all collectives."""
    return [value for record in trial.ok if (value := _value(record, metric)) is not None]


def _value(record: Record, metric: str) -> int | None:
    """Return one figure; 0 for a category or a collective that is not among those of the repeat."""
    memory = record.memory
    total = metric in TRAFFIC
    if metric == WORK:
        timing = record.timing
        rates = () if timing is None else (timing.tokens_per_s, timing.samples_per_s)
        rate = next((one for one in rates if one is not None), None)
        return None if rate is None or timing is None else round(rate * timing.mean_step_s)
    if metric in (*PEAKS, RESIDENT):
        peak: int | None = None if memory is None else getattr(memory, metric)
        return peak
    if metric.startswith("memory."):
        categories = {} if memory is None else memory.by_category
        return categories.get(metric.removeprefix("memory."), 0) if categories else None
    if total or metric.startswith("traffic."):
        if record.timing is None:
            return None
        kind, _, field = metric.removeprefix("traffic_").removeprefix("traffic.").rpartition(".")
        counted = [one for name, one in record.traffic.items() if total or name == kind]
        return sum(one.bytes if field == "bytes" else one.calls for one in counted)
    return record.counts.get(metric)


def _change(metric: str, base: ConfigSummary, head: ConfigSummary, threshold: float) -> ExactChange:
    before, after = exact_values(base, metric), exact_values(head, metric)
    largest = max(before, default=None), max(after, default=None)
    if not before or not after:
        lost = (before or after) and base.ok and head.ok
        return ExactChange(metric, *largest, "unchecked" if lost else "absent")
    if metric in NEVER_NONE and max(before) > 0 and min(after) == 0:
        return ExactChange(metric, *largest, "unchecked")
    is_memory = metric in (*PEAKS, RESIDENT) or metric.startswith("memory.")
    if not is_memory or (_counted(base) and _counted(head)):
        return ExactChange(metric, *largest, _answer(before, after, threshold))
    answer = _answer(before, after, max(threshold, ESTIMATED_MARGIN))
    sure = answer in ("regression", "suspected") and max(before) > 0
    return ExactChange(metric, *largest, answer if sure else "estimated")


def _counted(trial: ConfigSummary) -> bool:
    return all(record.memory.exact for record in trial.ok if record.memory is not None)


def _answer(base: list[int], head: list[int], threshold: float) -> ExactAnswer:
    above = sum(value > max(base) * (1 + threshold) for value in head)  # none, of an infinite threshold
    if above:
        return "regression" if 2 * above > len(head) else "suspected"
    if len(set(base)) > 1 or len(set(head)) > 1:
        return "varies"
    return "lower" if head[0] < base[0] else "higher" if head[0] > base[0] else "same"
