"""Everything that was measured of one configuration."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from zbench.record.store import TRACES, is_inside
from zbench.record.summary import ConfigSummary, known_rate
from zbench.report.columns import spread
from zbench.report.roles import word
from zbench.report.screen import Screen
from zbench.report.table import log_path
from zbench.report.text import (
    axes_text,
    failure_text,
    figure_text,
    outcome_text,
    plural,
    printable,
    printable_lines,
    sparkline,
)
from zbench.spec.metrics import METRICS, STEP_TIMES
from zbench.units import format_bytes, format_seconds

_LABEL_WIDTH = 18
_UNRESOLVED = 0.1


def print_configuration(screen: Screen, summary: ConfigSummary, run_dir: Path | None = None) -> None:
    """Print one configuration: outcome, timing and its phases, memory, traffic, correctness, warnings."""
    head = Text.assemble((printable(summary.trial_id), "bold"), f"  {axes_text(summary.axes)}")
    screen.print(head, soft_wrap=True)
    for label, value in _lines(summary, run_dir):
        name = (f"  {printable(label):{_LABEL_WIDTH - 1}} ", "dim")
        screen.print(Text.assemble(name, value), soft_wrap=True)


def _lines(summary: ConfigSummary, run_dir: Path | None) -> Iterator[tuple[str, Text | str]]:
    yield "outcome", word(outcome_text(summary))
    environment = next((record.environment for record in summary.records if record.environment), {})
    if environment:
        yield "environment", printable(", ".join(f"{name} {value}" for name, value in environment.items()))
    if summary.outcome != "ok":
        yield "error", failure_text(summary)
    if summary.error is not None and summary.error.log:
        yield "log", log_path(summary.error.log, run_dir)
    if summary.ok:
        yield from _timing(summary)
        yield from _memory(summary)
        for name, traffic in summary.ok[-1].traffic.items():
            yield name, f"{plural(traffic.calls, 'call')}, {format_bytes(traffic.bytes)} per step"
        yield from _correctness(summary)
        yield from trace_lines(run_dir, summary.trial_id) if run_dir is not None else ()
    for warning in summary.warnings:
        yield "warning", Text(printable_lines(warning), "yellow")


def _metrics(summary: ConfigSummary, *names: str) -> Iterator[tuple[str, str]]:
    """Yield title and text of those of these metrics that were measured."""
    for name in names:
        if summary.metric(name) is not None:
            yield METRICS[name].title, figure_text(summary, name)


def _timing(summary: ConfigSummary) -> Iterator[tuple[str, str]]:
    rate = known_rate([summary])
    over = f" {spread(rate).text(summary)} over {len(summary.ok)} repeats"
    is_repeated = summary.spread(rate) is not None
    yield METRICS[rate].title, f"{figure_text(summary, rate)}{over if is_repeated else ''}"
    mean, *others = STEP_TIMES
    for title, text in _metrics(summary, mean):
        each = ", ".join(map(METRICS[mean].format, summary.values(mean)))
        yield title, f"{text} (each repeat: {each})" if len(summary.ok) > 1 else text
    yield from _metrics(summary, *others, "tflops")
    mfu = [record.timing.mfu for record in summary.ok if record.timing and record.timing.mfu is not None]
    if mfu:
        yield "MFU", f"{statistics.median(mfu):.1%} of the peak FLOP/s"
    yield from _metrics(summary, "of_compute")
    if losses := summary.ok[-1].losses:
        yield "loss", f"{losses[0]:.4g} to {losses[-1]:.4g}  {sparkline(losses)}"
    step = summary.number("median_step_s")
    for phase, seconds in summary.phases.items():
        share = f" ({seconds / step:.0%} of a step)" if step else ""
        yield f"  {phase}", format_seconds(seconds) + share
    if step and sum(summary.phases.values()) > 1.005 * step:
        yield "", "phases overlap or vary from step to step, so their medians add up to more than a step"


def _memory(summary: ConfigSummary) -> Iterator[tuple[str, str]]:
    peaks = [record.memory for record in summary.ok if record.memory is not None]
    is_exact = all(memory.exact for memory in peaks)
    for name in ("peak_device_bytes", "peak_host_bytes", "peak_rss_bytes"):
        for title, text in _metrics(summary, name):
            yield title, text if is_exact or name == "peak_rss_bytes" else f"{text} (estimated)"
    for category, size in peaks[-1].by_category.items() if peaks else ():
        yield f"  {category}", format_bytes(size)


def _correctness(summary: ConfigSummary) -> Iterator[tuple[str, Text | str]]:
    yield METRICS["verdict"].title, word(f"{summary.verdict}{summary.uncovered}")
    if summary.diagnosis is not None:
        yield "diagnosis", printable(summary.diagnosis)
    farthest = summary.farthest
    for one in farthest.coefficients:
        estimate = f"{one.value:.6g} ± {one.error:.1g}" if one.error < _UNRESOLVED else "not resolved"
        yield f"  {printable(one.term)}", f"{estimate} of what it should be"
    yield from _metrics(summary, "error_ratio", "max_abs_diff")
    figures = (
        ("max ULP diff", farthest.max_ulp_diff),
        ("worst parameter", farthest.worst_parameter),
        ("first differing", farthest.first_differing_step),
        ("deterministic steps", farthest.deterministic_steps or None),
        ("loss diff", farthest.loss_max_abs_diff),
        ("grad norm diff", farthest.grad_norm_max_abs_diff),
    )
    for label, value in figures:
        if value is not None:
            yield label, f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def trace_lines(run_dir: Path, trial_id: str) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of a trial's trace; draw its timeline if that is missing."""
    stem = run_dir / TRACES / trial_id
    trace, memory = stem.with_suffix(".trace.json"), stem.with_suffix(".memory.json")
    picture = stem.with_suffix(".memory.svg")
    if not memory.is_file() or not is_inside(picture, run_dir):
        return
    document = json.loads(memory.read_text())
    for name, part in document["bounds"].items():
        least = part["least_seconds"]
        bound = f", at least {format_seconds(least)}" if least else ""
        share = f" ({part['seconds'] / document['seconds']:.0%} of the traced step{bound})"
        yield name.replace("_", " "), format_seconds(part["seconds"]) + share
    if not picture.exists():
        from zbench.report.html.timelines import memory_timeline

        picture.write_text(memory_timeline(document, trial_id).file(), encoding="utf-8")
    yield "trace", f"{trace} (open it in https://ui.perfetto.dev)"
    yield "memory timeline", str(picture)
