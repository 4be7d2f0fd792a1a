"""The figures of an estimate: what each is called, how it is read from a row, and how people read it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from zbench.estimate.result import Estimate
from zbench.estimate.roofline import StepTime, moved
from zbench.estimate.row import EstimateRow, Span
from zbench.report.columns import Column, DataTable
from zbench.report.text import value_text
from zbench.units import format_bytes, format_count, format_seconds

_DAY = 86_400.0  # seconds
_HOUR = 3600.0
_STATE = ("parameters", "gradients", "master", "moments")


def _column(
    name: str, value: Callable[[EstimateRow], Any], form: Callable[[Any], str] = str, title: str = ""
) -> Column[EstimateRow]:
    return Column(name, value, form, title, left=True, folds=True)


def _bytes(
    name: str, title: str, size: Callable[[Estimate, EstimateRow], float | None]
) -> Column[EstimateRow]:
    """Return the column of a size that an estimate has."""

    def value(row: EstimateRow) -> float | None:
        return None if row.estimate is None else size(row.estimate, row)

    return _column(name, value, format_bytes, title)


def _held(estimate: Estimate, *categories: str) -> int:
    return sum(estimate.device.get(name, 0) for name in categories)


TRIAL = _column("trial_id", lambda row: row.trial.trial_id, title="trial")
DEVICE = _bytes("device_bytes", "device", lambda e, _: e.peak_device_bytes)
RESERVED = _bytes("reserved_bytes", "reserved", lambda e, _: e.reserved.peak_bytes if e.reserved else None)
HOST = _bytes("host_bytes", "host", lambda e, _: e.peak_host_bytes)
HOST_OF_A_NODE = _bytes(
    "host_bytes_of_a_node", "host of a node", lambda _, row: row.host_bytes_of_a_node or None
)
VERDICT = _column("verdict", lambda row: row.verdict, title="room")
_PARTS = (
    _bytes("state_bytes", "state", lambda e, _: _held(e, *_STATE)),
    _bytes("activations", "activations", lambda e, _: _held(e, "activations")),
    _bytes("other_bytes", "other", lambda e, _: e.peak_device_bytes - _held(e, *_STATE, "activations")),
    _bytes("sent_bytes", "sent", lambda e, row: moved(e.traffic, row.trial)[0]),
    _bytes("received_bytes", "received", lambda e, row: moved(e.traffic, row.trial)[1]),
)


def estimate_table(rows: Sequence[EstimateRow], caption: str = "") -> DataTable[EstimateRow]:
    """Return the table of `zbench estimate`: a column for each axis, and each figure that some row has."""
    axes = dict.fromkeys(key for row in rows for key in row.trial.axes)
    columns = [
        *([] if all(row.trial.axes for row in rows) else [TRIAL]),
        *map(_axis, axes),
        *(DEVICE, RESERVED, HOST, HOST_OF_A_NODE, *_PARTS),
        *(STEP, TOKENS_PER_S, MFU),
        *map(_training, dict.fromkeys(row.training[0] for row in rows if row.training is not None)),
        *(HOURS, COST),
        VERDICT,
        *(_limit(name, *texts) for name, texts in _LIMITS.items()),
    ]
    return DataTable([c for c in columns if any(c.value(row) is not None for row in rows)], rows, caption)


def estimate_documents(rows: Sequence[EstimateRow]) -> list[dict[str, Any]]:
    """Return the figures of each row as name -> plain value, in bytes; a figure that it lacks is left out."""
    return [{TRIAL.name: row.trial.trial_id, **row.trial.axes, **_figures(row)} for row in rows]


def _figures(row: EstimateRow) -> dict[str, Any]:
    if row.estimate is None:
        return {}
    sizes = {column.name: column.value(row) for column in (DEVICE, HOST, RESERVED)}
    return {
        **{name: size for name, size in sizes.items() if size is not None},
        HOST_OF_A_NODE.name: row.host_bytes_of_a_node,
        **row.estimate.device,
        "fits": row.fits,
        **_ends(row),
    }


def _ends(row: EstimateRow) -> dict[str, float]:
    """Return the least and the most of each figure that is a range, in two columns."""
    step = (row.time.low_s, row.time.high_s) if isinstance(row.time, StepTime) else None
    spans = {"step_s": step} | {c.name: c.value(row) for c in (TOKENS_PER_S, MFU, HOURS, COST)}
    return {
        f"{name}_{end}": number
        for name, span in spans.items()
        if span is not None
        for end, number in zip(("low", "high"), span, strict=True)
    }


def _axis(key: str) -> Column[EstimateRow]:
    return _column(key, lambda row: value_text(row.trial.axes[key]) if key in row.trial.axes else None)


def _step_seconds(row: EstimateRow) -> Span | str | None:
    return (row.time.low_s, row.time.high_s) if isinstance(row.time, StepTime) else row.time


def _training(tokens: int) -> Column[EstimateRow]:
    def value(row: EstimateRow) -> Span | str | None:
        if row.estimate is None or row.training is None or row.training[0] != tokens:
            return None
        return row.training[1]

    return _column(TRAINING, value, _span, f"{format_count(tokens)} tokens")


def _span(seconds: Span | str) -> str:
    if isinstance(seconds, str):
        return f"not known: {seconds}"
    return to_text(seconds, _duration)


def _duration(seconds: float) -> str:
    for size, unit in ((_DAY, "days"), (_HOUR, "hours")):
        if seconds > size:
            return f"{_three(seconds / size)} {unit}"
    return format_seconds(seconds)


def _three(number: float) -> str:
    """Return a number with three significant digits, and all digits before the point."""
    digits = 0 if number < 1 else math.floor(math.log10(number))
    return f"{round(number, 2 - digits):,.{max(0, 2 - digits)}f}" if number >= 1 else f"{number:.3g}"


def to_text(span: Span, form: Callable[[float], str]) -> str:
    """Return `1.2 to 1.9 s`: both ends, and their unit once if they have the same."""
    low, high = (form(end) for end in span)
    number, _, unit = low.rpartition(" ")
    return f"{number} to {high}" if number and high.endswith(f" {unit}") else f"{low} to {high}"


STEP = _column("step", _step_seconds, _span)
TOKENS_PER_S = _column(
    "tokens_per_s", lambda row: row.tokens_per_s, lambda span: to_text(span, _three), "tokens/s"
)
MFU = _column("mfu", lambda row: row.mfu, lambda span: to_text(span, lambda share: f"{share:.0%}"), "MFU")
TRAINING = "training_seconds"
HOURS = _column(
    "device_hours", lambda row: row.device_hours, lambda span: to_text(span, _three), "device hours"
)
COST = _column("cost", lambda row: row.cost, lambda span: to_text(span, _three))


_LIMITS = {
    "smallest_world_size": ("ranks", ">= {}", "none fits"),
    "largest_micro_batch": ("micro-batch", "<= {}", "none fits"),
    "longest_sequence": ("sequence", "<= {}", "-"),
}
"""Limit -> its title, its form, and what a row without such a limit shows."""


def _limit(name: str, title: str, form: str, without: str) -> Column[EstimateRow]:
    """Return the column of a limit, or of why it is not known."""

    def value(row: EstimateRow) -> str | None:
        if row.limits is None:
            return None
        if name in row.limits.undecided:
            return f"undecided ({row.limits.undecided[name]})"
        found = getattr(row.limits, name)
        if name in row.limits.bounded_by:
            return f"{found}, {row.limits.bounded_by[name]}"
        return form.format(found) if found else without

    return _column(name, value, title=title)
