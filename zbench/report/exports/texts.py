"""A comparison as texts and figures, the same in every format made for people."""

from collections.abc import Sequence
from functools import partial
from math import exp, expm1, isfinite
from operator import attrgetter
from statistics import fmean

from zbench.analysis.compare import Comparison
from zbench.analysis.decision import Decision
from zbench.analysis.exact import RESIDENT, WORK, ExactChange
from zbench.analysis.rows import ROW_ORDER, Row, RowAnswer
from zbench.analysis.trials import step_logs
from zbench.record.summary import has_failed
from zbench.report.columns import CONFIGURATION, RESULT, Column, DataTable, metric
from zbench.report.roles import ANSWERS
from zbench.report.text import failure_message, label, outcome_text, plural
from zbench.spec.metrics import METRICS
from zbench.units import format_bytes

_ID_LENGTH = 8
_SIDES = attrgetter("base", "head")
_EXACT_NAMES = {
    **{name: metric.title for name, metric in METRICS.items()},
    "traffic_bytes": "traffic",
    "traffic_calls": "collective calls",
    "allocations": "allocations a step",
    "operators": "operators a step",
    "kernel_launches": "kernel launches a step",
    "flops": "floating-point operations a step",
    "instructions": "instructions retired a step",
    RESIDENT: "resident memory",
    WORK: "tokens or samples a step",
}
_NOTED = ("suspected", "varies", "estimated", "unchecked")
_IN_BYTES = ("_bytes", ".bytes")


def percent(fraction: float) -> str:
    """Return a change with its sign, such as `+4.9 %`, or as a factor if it is a factor of 11 or more."""
    if abs(fraction) >= 10:
        return f"x{1 + fraction:.1f}" if fraction < 1000 else "over x1000"
    return (
        f"{100 * fraction:+.1f} %" if abs(fraction) >= 0.0005 or not fraction else f"{100 * fraction:+.1g} %"
    )


def interval(decision: Decision) -> str:
    """Return the change and its interval, such as `+4.9 % [+3.1, +6.8]`."""
    if not (isfinite(decision.low) and isfinite(decision.high)):
        return f"{percent(decision.change)} [unknown]"
    if decision.is_wide:
        return f"{percent(decision.change)} [over x10]"
    low, high = (100 * expm1(bound) for bound in (decision.low, decision.high))
    return f"{percent(decision.change)} [{low:+.1f}, {high:+.1f}]"


def arrow(before: str, after: str) -> str:
    """Return `before -> after`, or one of them if both texts are equal."""
    return after if before == after else f"{before} -> {after}"


def exact_value(change: ExactChange) -> str:
    """Return an exact figure before and after, with its change where there is one."""
    form = format_bytes if change.metric.endswith(_IN_BYTES) or change.metric.startswith("memory.") else str
    if change.answer == "absent":
        return "-"
    before, after = ("none" if one is None else form(one) for one in (change.base, change.head))
    if change.base == change.head:
        return after
    if before == after:
        before, after = f"{change.base} B", f"{change.head} B"
    note = f" ({change.answer})" if change.answer in _NOTED else ""
    moved = f", {percent(change.change)}" if change.change is not None else ""
    return f"{before} -> {after}{moved}{note}"


def table(comparison: Comparison, rows: Sequence[Row] | None = None) -> DataTable[Row]:
    """Return a comparison's rows, or these of them; the caption counts the answers."""
    columns: list[Column[Row]] = [
        CONFIGURATION.of(attrgetter("base")),
        Column("answer", _answer, left=True, roles=ANSWERS),
        Column("mean_step_s", _mean_steps, title=METRICS["mean_step_s"].title, left=True, folds=True),
        Column("change", lambda row: row.step_time, interval, left=True, folds=True),
        metric(comparison.rate).of_both(_SIDES, arrow),
        Column("peak", _peak, exact_value, "peak memory", left=True, folds=True),
        Column("traffic", partial(_exact, "traffic_bytes"), exact_value, left=True, folds=True),
        RESULT.of_both(_SIDES, arrow),
        Column("trial_id", lambda row: row.head.trial_id[:_ID_LENGTH], title="trial", left=True),
    ]
    return DataTable(columns, comparison.rows if rows is None else rows, summary(comparison)[0])


def _answer(row: Row) -> str:
    is_faster = row.answer == "pass" and row.step_time is not None and row.step_time.faster
    return "pass, faster" if is_faster else row.answer


def _exact(metric: str, row: Row) -> ExactChange:
    return next(change for change in row.exact if change.metric == metric)


def _peak(row: Row) -> ExactChange:
    """Return the peak of the device or, where neither side has one, of the host."""
    device = _exact("peak_device_bytes", row)
    is_of_host = device.base is None and device.head is None
    return _exact("peak_host_bytes", row) if is_of_host else device


def _mean_steps(row: Row) -> str:
    return arrow(*map(METRICS["mean_step_s"].format, _seconds(row)))


def _seconds(row: Row) -> tuple[float | None, float | None]:
    """Return the mean step times of base and head; their ratio equals the change in the next column."""
    base, head = row.base.number("mean_step_s"), row.head.number("mean_step_s")
    if row.step_time is None or base is None or head is None:
        return base, head
    typical = exp(fmean(step_logs(row.base)))
    return typical, typical * (1 + row.step_time.change)


def reasons(row: Row) -> list[str]:
    """Return why the row got its answer, and the changes that `table` does not show, one sentence each."""
    lines = []
    if row.answer == "incorrect":
        diagnosis = row.head.diagnosis or "its training step differs from the reference's"
        lines.append(f"head is {row.head.verdict}: {diagnosis}")
    elif row.head.outcome != "ok":
        lines.append(f"head ended in {row.head.outcome}: {failure_message(row.head) or 'no message'}")
    if row.answer == "failed" and row.base.outcome != "ok":
        counts = (
            f"{len(side.records) - len(side.ok)} of {len(side.records)}" for side in (row.base, row.head)
        )
        lines.append("head fails more often than base (base {}, head {})".format(*counts))
    if row.answer == "unchecked" and row.head.is_unjudged and not row.verdict_lowered:
        lines.append("verify.mode is full, and nothing could be verified")
    if row.verdict_lowered and row.answer != "incorrect":
        lines.append(f"verdict fell from {row.base.verdict} to {row.head.verdict}")
    if row.lost_repeats and row.answer == "unchecked":
        lines.append(f"head lacks {row.lost_repeats} of {len(row.base.records)} repeats; resume its run")
    if row.step_time is not None and row.step_time.reason:
        lines.append(f"step time: {row.step_time.reason}")
    lines += [
        f"{_EXACT_NAMES.get(change.metric, change.metric)}: {exact_value(change)}"
        for change in (*row.exact, *row.details)
        if change.answer in ("regression", "suspected", "unchecked")
        or (change.answer in ("higher", "lower") and _unseen(change, row))
    ]
    return lines


def _unseen(change: ExactChange, row: Row) -> bool:
    shown_peak = "peak_device_bytes" if row.exact[0].base is not None else "peak_host_bytes"
    return change.metric not in (shown_peak, "traffic_bytes")


def grouped_reasons(rows: Sequence[Row]) -> list[tuple[str, RowAnswer]]:
    """Return the reasons of all rows with their configurations; a reason that rows share is given once."""
    labels: dict[tuple[str, RowAnswer], list[str]] = {}
    for row in rows:
        for reason in reasons(row):
            labels.setdefault((reason, row.answer), []).append(label(row.base))
    return [
        (f"{names[0] if len(names) == 1 else f'{len(names)} configurations'}: {reason}", answer)
        for (reason, answer), names in labels.items()
    ]


def summary(comparison: Comparison) -> list[str]:
    """Return the whole comparison in a few lines."""
    counts = {answer: comparison.count(answer) for answer in ROW_ORDER}
    listed = ", ".join(f"{count} {answer}" for answer, count in counts.items() if count)
    lines = [f"{plural(len(comparison.rows), 'configuration')}: {listed}"]
    mean, worst, best = comparison.geometric_mean, comparison.worst, comparison.best
    if mean is not None and worst is not None and best is not None and worst.step_time and best.step_time:
        lines.append(
            f"step time, geometric mean {percent(mean)}; worst {percent(worst.step_time.change)} "
            f"({label(worst.base)}); best {percent(best.step_time.change)} ({label(best.base)})"
        )
    if comparison.missing:
        lines.append(f"missing in head: {', '.join(label(trial) for trial in comparison.missing)}")
    if comparison.added:
        added = [label(trial) + f" ({outcome_text(trial)})" * has_failed(trial) for trial in comparison.added]
        lines.append(f"only in head: {', '.join(added)}")
    if comparison.unlike:
        lines.append(f"UNLIKE MACHINES, compared because of --across: {'; '.join(comparison.unlike)}")
    if comparison.no_yardstick:
        lines.append(f"no time is compared without the machine's yardstick: {comparison.no_yardstick}")
    if comparison.warnings:
        lines.append(f"warnings: {'; '.join(comparison.warnings)}")
    return [*lines, *_would_have_seen(comparison), *([] if comparison.no_yardstick else [method(comparison)])]


def _would_have_seen(comparison: Comparison) -> list[str]:
    """Return the smallest slowdown that this measurement could detect."""
    detectable = [decision.detectable for _, decision in comparison.timed if decision.detectable is not None]
    if not detectable:
        return []
    least, most = percent(expm1(min(detectable))), percent(expm1(max(detectable)))
    span = most if least == most else f"{least} to {most}"
    return [f"smallest slowdown detected nine times in ten at this noise: {span}"]


def method(comparison: Comparison) -> str:
    """Return how the decisions were made."""
    settings, paired = comparison.settings, comparison.paired
    rule = (
        f"The threshold is a slowdown of {100 * settings.thresholds['step_time']:g} %; where nothing differs,"
        f" the chance that one is called is at most {100 * settings.alpha:g} %. Intervals are at"
        f" {100 * (1 - 2 * settings.alpha):g} %"
    )
    if paired is None:
        return (
            "Two stored runs: times are compared as they are, and divided by each part of the machine's"
            f" yardstick (fixed kernels that took turns with them), which may miss by 2 %. {rule}; --paired"
            " detects smaller changes."
        )
    if paired.exact_only:
        return "one sample per side: verdicts and exact figures only, nothing was timed"
    drift = "" if paired.drift is None else f"; base itself changed by {percent(paired.drift)} meanwhile"
    return f"Base and head were measured in pairs on this machine. {rule}{drift}."
