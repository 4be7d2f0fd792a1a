"""What a part of `make gpu` is run with, and what it leaves."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

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
