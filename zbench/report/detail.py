"""Everything that was measured of one configuration."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from zbench.record.record import Record
from zbench.record.store import TRACES, is_inside
from zbench.record.summary import ConfigSummary, known_rate
from zbench.report.roles import word
from zbench.report.screen import Screen
from zbench.report.table import log_path
from zbench.report.text import (
    axes_text,
    failure_text,
    of_compute_text,
    outcome_text,
    plural,
    printable,
    printable_lines,
    rate_text,
    seconds_text,
    sparkline,
)
from zbench.spec.metrics import RATES, STEP_TIMES
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
        yield from _memory(summary.ok)
        for name, traffic in summary.ok[-1].traffic.items():
            yield name, f"{plural(traffic.calls, 'call')}, {format_bytes(traffic.bytes)} per step"
        yield from _correctness(summary)
        yield from trace_lines(run_dir, summary.trial_id) if run_dir is not None else ()
    for warning in summary.warnings:
        yield "warning", Text(printable_lines(warning), "yellow")


def _timing(summary: ConfigSummary) -> Iterator[tuple[str, str]]:
    rate = known_rate([summary])
    spread = summary.spread(rate)
    count = len(summary.ok)
    over = f" ±{spread:.1%} over {count} repeats" if spread is not None else ""
    yield RATES[rate], f"{rate_text(summary.number(rate))}{over}"
    mean, step, *longest = (summary.number(name) for name in STEP_TIMES)
    if mean is not None:
        each = ", ".join(format_seconds(value) for value in summary.values("mean_step_s"))
        yield "mean step", format_seconds(mean) + (f" (each repeat: {each})" if count > 1 else "")
        yield "median, p95, worst", ", ".join(map(seconds_text, (step, *longest)))
    tflops = summary.number("tflops")
    if tflops is not None:
        yield ("TFLOP/s", f"{tflops:.3g}") if tflops >= 1 else ("GFLOP/s", f"{1e3 * tflops:.3g}")
    mfu = [record.timing.mfu for record in summary.ok if record.timing and record.timing.mfu is not None]
    if mfu:
        yield "MFU", f"{statistics.median(mfu):.1%} of the peak FLOP/s"
    if summary.values("of_compute"):
        yield "of compute", of_compute_text(summary)
    if losses := summary.ok[-1].losses:
        yield "loss", f"{losses[0]:.4g} to {losses[-1]:.4g}  {sparkline(losses)}"
    for phase, seconds in summary.phases.items():
        share = f" ({seconds / step:.0%} of a step)" if step else ""
        yield f"  {phase}", format_seconds(seconds) + share
    if step and sum(summary.phases.values()) > 1.005 * step:
        yield "", "phases overlap or vary from step to step, so their medians add up to more than a step"


def _memory(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    peaks = [record.memory for record in records if record.memory is not None]
    if not peaks:
        return
    for label, name in (("peak memory", "device"), ("peak host", "host"), ("peak RSS", "rss")):
        known = [value for one in peaks if (value := getattr(one, f"peak_{name}_bytes")) is not None]
        if known:
            is_exact = name == "rss" or all(memory.exact for memory in peaks)
            yield label, format_bytes(max(known)) + ("" if is_exact else " (estimated)")
    for category, size in peaks[-1].by_category.items():
        yield f"  {category}", format_bytes(size)


def _correctness(summary: ConfigSummary) -> Iterator[tuple[str, Text | str]]:
    yield "verdict", word(summary.verdict)
    if summary.diagnosis is not None:
        yield "diagnosis", printable(summary.diagnosis)
    what = summary.farthest
    for one in what.coefficients:
        known = f"{one.value:.6g} ± {one.error:.1g}" if one.error < _UNRESOLVED else "not resolved"
        yield f"  {printable(one.term)}", f"{known} of what it should be"
    figures = (
        ("error ratio", what.error_ratio),
        ("max abs diff", what.max_abs_diff),
        ("max ULP diff", what.max_ulp_diff),
        ("worst parameter", what.worst_parameter),
        ("first differing", what.first_differing_step),
        ("deterministic steps", what.deterministic_steps or None),
        ("loss diff", what.loss_max_abs_diff),
        ("grad norm diff", what.grad_norm_max_abs_diff),
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
