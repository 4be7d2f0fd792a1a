"""The page of a device, and the summary in the terminal. Imports no torch."""

import re
from collections.abc import Mapping, Sequence

from zbench.bench.gpu.outcome import Bar, PartOutcome
from zbench.bench.results import table


def folder_name(device: str) -> str:
    """Return a device's name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def summary(outcomes: Mapping[str, PartOutcome]) -> str:
    """Return a line for each part, and how many passed, failed and are missing."""
    width = max(len(name) for name in outcomes)
    lines = [f"{name:{width}}  {o.status:7}  {o.says}{_missed(o.bars)}" for name, o in outcomes.items()]
    counts = {status: sum(o.status == status for o in outcomes.values()) for status in _STATUSES}
    return "\n".join([*lines, ", ".join(f"{count} {status}" for status, count in counts.items())])


def text(device: str, outcomes: Mapping[str, PartOutcome]) -> str:
    """Return the page as Markdown."""
    lines = [
        f"# {device}",
        "",
        "Made by `make gpu`; each part's result is the file of its name beside this page.",
    ]
    if device == "cpu":
        lines += ["", "**The parts were only tried, on a CPU: nothing here is a figure of a device.**"]
    parts = [[name, o.status, f"{o.seconds:.0f}", o.says] for name, o in outcomes.items()]
    lines += ["", table(("part", "status", "seconds", ""), parts)]
    bars = [(name, bar) for name, o in outcomes.items() for bar in o.bars]
    if bars:
        columns = ("part", "figure", "value", "bar", "met")
        lines += ["", "## Bars", "", table(columns, map(_bar_row, bars))]
    for name, outcome in outcomes.items():
        if outcome.rows:
            lines += ["", f"## {name}", "", table(outcome.rows[0], outcome.rows[1:])]
    return "\n".join(lines) + "\n"


_STATUSES = ("passed", "failed", "missing")


def _missed(bars: Sequence[Bar]) -> str:
    missed = sum(not bar.met for bar in bars)
    return f"; {missed} of {len(bars)} bars missed" if missed else ""


def _bar_row(found: tuple[str, Bar]) -> list[str]:
    name, bar = found
    sign = "at most" if bar.most else "at least"
    return [name, bar.says, f"{bar.value:.3f}", f"{sign} {bar.bar:.2f}", "yes" if bar.met else "**no**"]
