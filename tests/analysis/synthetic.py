"""Small synthetic results: records with the step times, bytes and verdicts that a test asks for."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbench.analysis.cells import Cell
from zbench.analysis.paired import Side, block_cells, block_orders
from zbench.analysis.trials import RunResults, Source
from zbench.record import lines
from zbench.record.documents import sealed
from zbench.record.record import (
    Correctness,
    Failure,
    Heat,
    MemoryPeaks,
    Outcome,
    Record,
    Timing,
    Traffic,
    VerdictName,
)

MACHINE = {"cpu": "Example CPU", "cores": 2}
ENVIRONMENT = {
    "fingerprint": "f00d",
    "machine": MACHINE,
    "system": {"kernel": "6.1.0", "hostname": "example"},
    "software": {"torch": "2.13.0"},
    "git": {"commit": "c0ffee", "dirty": False},
    "started": "2026-01-01T00:00:00+0000",
}
BASE_ID, HEAD_ID = "20260101-000000-aaaa", "20260102-000000-bbbb"


def saved(item: Record) -> Record:
    """Return a record with an id as files hold it: hexadecimal."""
    return replace(item, trial_id=hashlib.sha256(item.trial_id.encode()).hexdigest()[:12])


def record(
    step_s: float = 0.1,
    *,
    axes: dict[str, Any] | None = None,
    repeat: int = 0,
    verdict: VerdictName = "identical",
    peak: int = 1_000_000,
    traffic: int = 4_000_000,
    outcome: Outcome = "ok",
    exact: bool = True,
    config: dict[str, Any] | None = None,
) -> Record:
    """Return one repeat whose every step took `step_s` seconds."""
    axes = {"zero_stage": 1} if axes is None else axes
    common: dict[str, Any] = {
        "run_id": BASE_ID,
        "trial_id": "t" + "-".join(f"{key}{value}" for key, value in axes.items()),
        "repeat": repeat,
        "axes": axes,
        "config": config or {"engine": {"engine": "builtin", **axes}, "run": {"steps": 3, "repeats": 3}},
    }
    if outcome != "ok":
        return Record(**common, outcome=outcome, error=Failure("exit", "killed by signal 9", "logs/x.log"))
    phases = {"forward": 0.4 * step_s, "backward": 0.6 * step_s}
    return Record(
        **common,
        outcome="ok",
        timing=Timing([step_s] * 3, step_s, 1000 / step_s, 10 / step_s, None, phases),
        memory=MemoryPeaks(
            peak, 2 * peak, 3 * peak, {"parameters": peak // 2, "gradients": peak // 4}, exact
        ),
        traffic={"all_reduce": Traffic(2, traffic)},
        correctness=Correctness(verdict, error_ratio=1.0),
    )


def trial(steps: Sequence[float], **keywords: Any) -> list[Record]:
    """Return one record a step time, as repeats of one configuration beside an even yardstick."""
    return [
        replace(
            record(step_s, repeat=i, **keywords),
            heat=Heat(str(i), [step_s] * 3, machine={"compute": [0.01] * 3}, yardstick=1),
        )
        for i, step_s in enumerate(steps)
    ]


def results(records: Sequence[Record], name: str = "base", **source: Any) -> RunResults:
    """Return a run of these records on the example machine."""
    keywords: dict[str, Any] = {"fingerprint": "f00d", "facts": MACHINE, "sweep": "example"} | source
    return RunResults.of(Source(name, **keywords), records)


def write_run(directory: Path, records: Sequence[Record], **environment: Any) -> Path:
    """Write a run directory as the recorder does; return it."""
    directory.mkdir(parents=True)
    (directory / "spec.yaml").write_text("schema_version: 1\nname: example\n")
    document = {"schema_version": 1} | ENVIRONMENT | environment
    (directory / "environment.json").write_bytes(sealed(document))
    data = lines.encode_all(replace(saved(item), run_id=directory.name) for item in records)
    (directory / "trials.jsonl").write_bytes(data)
    return directory


def blocks_of(logs: NDArray[np.float64], *, head: float = 0.0, seed: int = 0) -> tuple[Cell, ...]:
    """Return the cells of blocks whose processes have these logarithms, in order; head is `head` slower."""
    cells: tuple[Cell, ...] = ()
    for number, (order, row) in enumerate(zip(block_orders(len(logs), seed), logs.tolist(), strict=True)):
        seconds = [math.exp(log + head * (side == "head")) for side, log in zip(order, row, strict=True)]
        cells += block_cells(number, order, seconds)
    return cells


def pairs(values: Sequence[float]) -> list[Cell]:
    """Return the cells of pairs that differ by these logarithms, each at another speed of the machine."""
    return [
        Cell(side, str(i), str(i), (np.array([log]),))
        for i, value in enumerate(values)
        for side, log in (("base", 0.3 * i), ("head", 0.3 * i + value))
    ]


STAGES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Samples that are taken one after another, by a function."""

    take: Callable[[Side], Sequence[Record]]

    def take_in_turns(self, first: Side, second: Side) -> None:
        """Say that it cannot be done."""

    def remember(self, side: Side, sample: Sequence[Record]) -> None:
        """Need nothing of it."""


class Machine:
    """Takes samples whose steps drift upward all the time; head is slower by `factor` in stage 1.

    `spell` makes head that much slower only for its first block: a spell of load. `drift` is by how much each
    sample is slower than the one before.
    """

    def __init__(self, factor: float = 1.0, spell: float = 1.0, drift: float = 0.002, **head: Any) -> None:
        self.rng = np.random.default_rng(4)
        self.factor, self.spell, self.drift, self.head = factor, spell, drift, head
        self.taken: list[Side] = []

    def __call__(self, side: Side) -> list[Record]:
        self.taken.append(side)
        drift = (1 + self.drift) ** len(self.taken)
        slow = self.factor * (self.spell if len(self.taken) < 8 else 1.0)
        changes = self.head if side == "head" else {}
        seconds = [0.1 * drift * math.exp(self.rng.normal(0, 0.01)) for _ in STAGES]
        if side == "head":
            seconds[1] *= slow
        return [
            saved(record(step_s, axes={"zero_stage": stage}, **changes))
            for stage, step_s in zip(STAGES, seconds, strict=True)
        ]
