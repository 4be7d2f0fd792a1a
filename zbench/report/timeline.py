"""The memory timeline of a traced step, drawn: device and host apart, stacked by category, with the limit."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zbench.record.store import TRACES
from zbench.units import format_bytes, format_seconds

_MIB = 1 << 20


def draw_timeline(document: dict[str, Any], target: Path, title: str) -> None:
    """Write an SVG of one step's memory; `document` is what the worker wrote as `*.memory.json`."""
    from matplotlib.figure import Figure

    samples = document["samples"]
    figure = Figure(figsize=(9, 6), layout="constrained")
    for place, kind in enumerate(("device", "host"), 1):
        axes = figure.add_subplot(2, 1, place)
        times, stacks = stacked(samples, kind)
        if stacks:
            axes.stackplot(times, list(stacks.values()), labels=list(stacks), step="post")
            axes.legend(loc="upper left", fontsize="small")
        limit = document.get("limit_bytes")
        if kind == "device" and limit:
            axes.axhline(limit / _MIB, color="black", linestyle="--")
            axes.annotate(f"limit {format_bytes(limit)}", (0, limit / _MIB), va="bottom")
        axes.set_ylabel(f"{kind} memory (MiB)")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("time in the step (ms)")
    figure.suptitle(title)
    figure.savefig(target, format="svg", metadata={"Date": None})


def stacked(samples: Sequence[dict[str, Any]], kind: str) -> tuple[list[float], dict[str, list[float]]]:
    """Return the samples' times in milliseconds and, by category, MiB at each; kind: `device` or `host`."""
    names = dict.fromkeys(name for sample in samples for name in sample[kind])
    stacks = {name: [sample[kind].get(name, 0) / _MIB for sample in samples] for name in names}
    return [1e3 * sample["seconds"] for sample in samples], stacks


def trace_lines(run_dir: Path, trial_id: str) -> Iterator[tuple[str, str]]:
    """Yield what a trace says of a trial, as label and text; draws its timeline if that is not there yet."""
    stem = run_dir / TRACES / trial_id
    trace, memory = stem.with_suffix(".trace.json"), stem.with_suffix(".memory.json")
    if not memory.is_file():
        return
    document = json.loads(memory.read_text())
    for name, part in document["bounds"].items():
        least = part["least_seconds"]
        bound = f", at least {format_seconds(least)}" if least else ""
        share = f" ({part['seconds'] / document['seconds']:.0%} of the traced step{bound})"
        yield name.replace("_", " "), format_seconds(part["seconds"]) + share
    picture = stem.with_suffix(".memory.svg")
    if not picture.exists():
        draw_timeline(document, picture, f"trial {trial_id}: memory in one step, rank 0")
    yield "trace", f"{trace} (open it in https://ui.perfetto.dev)"
    yield "memory timeline", str(picture)
