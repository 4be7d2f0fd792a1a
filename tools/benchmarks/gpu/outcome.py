"""What a part of `tools.gpu` is run with and what it leaves; the page and the summary of all parts."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tools.benchmarks.results import table

Status = Literal["passed", "failed", "missing"]


@dataclass(frozen=True, slots=True)
class Place:
    """device: `cuda`, or `cpu` where the parts are only tried. tiny: the smallest sizes. out: the folder of
    the results. deepspeed_python: an interpreter that has DeepSpeed, if there is one.
    """

    device: str
    tiny: bool
    out: Path
    deepspeed_python: str | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and what it must reach; `most`: whether the bar is an upper one."""

    says: str
    value: float
    bar: float
    most: bool = True

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.most else self.value >= self.bar


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """status: `passed` also where a bar is missed; the page says so. says: one line. rows: a table, its
    first row the names of the columns.
    """

    status: Status
    says: str
    rows: Sequence[Sequence[str]] = ()
    bars: Sequence[Bar] = field(default_factory=tuple)
    seconds: float = 0.0

    def save(self, file: Path) -> None:
        """Write it, whole or not at all."""
        draft = file.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, file)

    @classmethod
    def load(cls, file: Path) -> "PartOutcome":
        """Read what `save` wrote; OSError or ValueError where it is not that."""
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**known, "bars": tuple(Bar(**bar) for bar in known["bars"])})


def folder_name(device: str) -> str:
    """Return a device's name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def summary(outcomes: Mapping[str, PartOutcome]) -> str:
    """Return a line for each part, and how many passed, failed and are missing."""
    width = max(len(name) for name in outcomes)
    lines = [f"{name:{width}}  {o.status:7}  {o.says}{_missed(o.bars)}" for name, o in outcomes.items()]
    counts = {status: sum(o.status == status for o in outcomes.values()) for status in get_args(Status)}
    return "\n".join([*lines, ", ".join(f"{count} {status}" for status, count in counts.items())])


def page(device: str, outcomes: Mapping[str, PartOutcome]) -> str:
    """Return the page as Markdown."""
    lines = [
        f"# {device}",
        "",
        "Made by `tools.gpu`; each part's result is the file of its name beside this page.",
    ]
    if device == "cpu":
        lines += ["", "**The parts were only tried, on a CPU: nothing here is a figure of a device.**"]
    parts = [[name, o.status, f"{o.seconds:.0f}", o.says] for name, o in outcomes.items()]
    lines += ["", table(("part", "status", "seconds", ""), parts)]
    bars = [(name, bar) for name, o in outcomes.items() for bar in o.bars]
    if bars:
        columns = ("part", "figure", "value", "bar", "met")
        lines += ["", "## Bars", "", table(columns, [_bar_row(name, bar) for name, bar in bars])]
    for name, outcome in outcomes.items():
        if outcome.rows:
            lines += ["", f"## {name}", "", table(outcome.rows[0], outcome.rows[1:])]
    return "\n".join(lines) + "\n"


def _missed(bars: Sequence[Bar]) -> str:
    missed = sum(not bar.met for bar in bars)
    return f"; {missed} of {len(bars)} bars missed" if missed else ""


def _bar_row(name: str, bar: Bar) -> list[str]:
    sign = "at most" if bar.most else "at least"
    return [name, bar.says, f"{bar.value:.3f}", f"{sign} {bar.bar:.2f}", "yes" if bar.met else "**no**"]
