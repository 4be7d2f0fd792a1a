"""The engine beside its peers: the same GPT step in interleaved turns; ratios, peaks per rank. Resumable.

    python -m tools.benchmarks.engines [--what one|grid|compiled] [--deepspeed-python PYTHON] --out FILE

`one` is a GPT of 27 M parameters on 2 ranks; `grid` four shapes x dtype x ranks x backwards a step;
`compiled` sets compiled ZeRO-1 beside eager ZeRO-1 and compiled DDP. Every contender is a process group of
its own (gloo, 1 thread a rank) that lives as long as its set is measured. `zbench sweep`'s own builders make
it and its clock times it: all ranks begin together, the slowest rank's time counts. Peak bytes are the most
that torch's CPU allocator had handed out at once during the measured steps.

The ratio of a match is the mean over rounds of log(ours / theirs), a round being one turn of every contender:
two steps, or one step of four backwards; its interval is Student's, 95 %. It knows how steps vary in one
start, not how starts vary. Theirs is the peer with the least median step. Compute alone, which communicates
nothing, is measured at 2 ranks: 4 share this machine's cores. In bfloat16 all keep float32 masters
(`tools.benchmarks.mixed`). A match that was measured is not measured again.
"""

import itertools
import math
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scipy.special import stdtrit

from tools.benchmarks import results
from tools.benchmarks.training import BATCH, LENGTH, VOCABULARY
from tools.benchmarks.turns import Contender, Figures, interpreters, measure_in_turns


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape of a GPT and how it is trained."""

    layers: int
    width: int
    vocabulary: int = VOCABULARY
    dtype: str = "float32"
    ranks: int = 2
    backwards: int = 1
    micro_batch: int = BATCH
    length: int = LENGTH

    @property
    def is_wide(self) -> bool:
        """Whether the contenders of two matches do not fit into 24 GiB together."""
        return self.ranks == 4 and self.vocabulary > 8192

    @property
    def turn(self) -> int:
        """Steps of a contender's turn."""
        return 2 if self.backwards == 1 else 1

    def __str__(self) -> str:
        """Return it as the table shows it."""
        return f"{self.layers} x {self.width}, {self.dtype}, {self.ranks} ranks, {self.backwards} backwards"


@dataclass(frozen=True, slots=True)
class Pairing:
    """What is compared: ours with the best of theirs. alone: the bar against compute alone."""

    ours: str
    theirs: tuple[str, ...]
    bar: float | None = None
    alone: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells, and in each the matches; those of one set are measured together."""

    cells: tuple[Cell, ...]
    sets: tuple[tuple[Pairing, ...], ...]

    @property
    def matches(self) -> tuple[Pairing, ...]:
        """The matches of all sets."""
        return tuple(itertools.chain(*self.sets))


SHAPES = ((6, 512, 8192), (12, 384, 8192), (24, 256, 8192), (2, 1024, 16384))
GRID = sorted(
    (
        Cell(*shape, dtype, ranks, backwards)
        for ranks, backwards, dtype, shape in itertools.product(
            (2, 4), (1, 4), ("float32", "bfloat16"), SHAPES
        )
    ),
    key=lambda cell: cell.is_wide and cell.backwards == 4,  # the longest last: half an hour each
)
PLANS = {
    "one": Plan(
        (Cell(6, 512),),
        (
            (
                Pairing("zbench-0", ("ddp",), 1.00, 1.15),
                Pairing("zbench-1", ("zero_redundancy",), 0.95, 1.15),
                Pairing("zbench-2", ("ddp",), 1.00, 1.15),
            ),
            (
                Pairing("zbench-2", ("deepspeed-2",), 0.70, 1.15),
                Pairing("zbench-3", ("fsdp2", "deepspeed-3"), 0.75, 1.30),
            ),
            (
                Pairing("zbench-2-offload", ("deepspeed-2-offload",), 0.80),
                Pairing("zbench-3-offload", ("deepspeed-3-offload",), 0.70),
                Pairing("zbench-3-offload-speculative", ("deepspeed-3-offload",), 0.65),
            ),
        ),
    ),
    "grid": Plan(
        tuple(GRID),
        (
            (
                Pairing("zbench-0", ("ddp", "zero_redundancy"), 1.00, 1.10),
                Pairing("zbench-1", ("ddp", "zero_redundancy"), 1.00, 1.10),
            ),
            (
                Pairing("zbench-2", ("deepspeed-2",), 0.70, 1.10),
                Pairing("zbench-3", ("fsdp2",), 0.75, 1.15),
            ),
            (
                Pairing("zbench-2-offload", ("deepspeed-2-offload",), 0.70),
                Pairing("zbench-2-offload-speculative", ("deepspeed-2-offload",), 0.65),
            ),
        ),
    ),
    "compiled": Plan(
        (Cell(6, 512), Cell(6, 256, micro_batch=4, length=256)),
        (
            (
                Pairing("zbench-1-inductor", ("zbench-1",), 0.95),
                Pairing("zbench-1-inductor", ("ddp-inductor",), 1.05),
                Pairing("alone-inductor", ("alone",)),  # what the compiler itself gains
            ),
        ),
    ),
}

MATCH_COLUMNS = (
    *("ours", "against", "cells", "median", "best cell", "worst cell", "bar"),
    *("against compute alone, median", "bar"),
)
CELL_COLUMNS = (
    *("cell", "ours", "theirs", "ratio (95 %)", "median steps, ms"),
    *("peak MiB per rank, ours / theirs", "peak RSS MiB"),
)


def contenders(cell: Cell, matches: Iterable[Pairing], pythons: Mapping[str, str]) -> list[str]:
    """Return the modes to start, each once: those that this machine has and the dtype allows."""
    wanted = [
        mode
        for match in matches
        for mode in (match.ours, *match.theirs, *(["alone"] if match.alone and cell.ranks == 2 else []))
    ]
    lacking = {"zero_redundancy"} if cell.dtype == "bfloat16" else set()
    return [mode for mode in dict.fromkeys(wanted) if mode.split("-")[0] in pythons.keys() - lacking]


def measure(cell: Cell, modes: Sequence[str], pythons: Mapping[str, str], rounds: int) -> dict[str, Figures]:
    """Return the figures of contenders that take turns."""
    environment = {
        "DTYPE": cell.dtype,
        "BACKWARDS": str(cell.backwards),
        "VOCABULARY": str(cell.vocabulary),
    }
    size = (cell.layers, cell.width, cell.micro_batch, cell.length)
    results.say(cell)
    start = partial(Contender, size=size, world=cell.ranks, environment=environment)
    return measure_in_turns(
        {mode: partial(start, mode, pythons[mode.split("-")[0]]) for mode in modes},
        rounds,
        warmup=cell.turn + 1,
        steps=cell.turn,
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over theirs, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float], turn: int = 2) -> "Ratio":
        """Return the ratio of two contenders' step times (seconds), `turn` of each in the same rounds."""
        logs = [math.log(a / b) for a, b in zip(_turns(ours, turn), _turns(theirs, turn), strict=True)]
        mean, n = statistics.fmean(logs), len(logs)
        error = statistics.stdev(logs) / math.sqrt(n) * float(stdtrit(n - 1, 0.975)) if n > 1 else math.inf
        return cls(math.exp(mean), math.exp(mean - error), math.exp(mean + error))

    def __str__(self) -> str:
        """Return it with its interval."""
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def _turns(seconds: Sequence[float], turn: int) -> list[float]:
    return [sum(steps) / turn for steps in zip(*[iter(seconds)] * turn, strict=True)]


@dataclass(frozen=True, slots=True)
class Measured:
    """One match of one cell, and the figures of the contenders of its set."""

    cell: Cell
    match: Pairing
    figures: Mapping[str, Mapping[str, Any]]

    @property
    def peer(self) -> str:
        """The peer with the least median step."""
        present = (name for name in self.match.theirs if name in self.figures)
        return min(present, key=lambda name: statistics.median(self.figures[name]["seconds"]))

    def ratio(self, theirs: str) -> Ratio:
        """Return our step times over those of a contender."""
        ours = self.figures[self.match.ours]["seconds"]
        return Ratio.of(ours, self.figures[theirs]["seconds"], self.cell.turn)

    def row(self) -> list[object]:
        """Return a row of the table of cells."""
        names = (self.match.ours, self.peer)
        steps = " / ".join(f"{statistics.median(self.figures[name]['seconds']) * 1e3:.1f}" for name in names)
        peaks, rss = (
            " / ".join(f"{self.figures[name][key] / 2**20:.0f}" for name in names)
            for key in ("peak_bytes", "rss_bytes")
        )
        return [self.cell, *names, self.ratio(self.peer), steps, peaks, rss]


def measured(findings: Sequence[Mapping[str, Any]], plan: Plan) -> list[Measured]:
    """Return the matches that the findings hold."""
    return [
        Measured(Cell(**finding["cell"]), match, finding["figures"])
        for finding in findings
        for match in plan.sets[finding["set"]]
        if match.ours in finding["figures"] and finding["figures"].keys() & set(match.theirs)
    ]


def table(findings: Sequence[Mapping[str, Any]], plan: Plan) -> str:
    """Return the summary of each match and every cell, as Markdown."""
    every, summary = measured(findings, plan), []
    for match in plan.matches:
        of_match = [one for one in every if one.match == match]
        if not of_match:
            continue
        ratios = [one.ratio(one.peer).value for one in of_match]
        alone = [one.ratio("alone").value for one in of_match if match.alone and "alone" in one.figures]
        middle = statistics.median(alone) if alone else None
        numbers = (statistics.median(ratios), min(ratios), max(ratios), match.bar, middle, match.alone)
        cells = ("-" if number is None else f"{number:.2f}" for number in numbers)
        summary.append([match.ours, ", ".join(match.theirs), len(ratios), *cells])
    return "\n\n".join(
        [
            f"{len(every)} of {len(plan.cells) * len(plan.matches)} matches measured.",
            results.table(MATCH_COLUMNS, summary),
            results.table(CELL_COLUMNS, [one.row() for one in every]),
        ]
    )


def deepspeed_versions(python: str | None) -> dict[str, str]:
    """Return the versions in DeepSpeed's environment."""
    if python is None:
        return {}
    ask = "from importlib.metadata import version; print(version('deepspeed'), version('torch'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return dict(zip(("deepspeed", "deepspeed's torch"), done.stdout.split(), strict=True))


def main() -> None:
    """Measure what is missing, writing the table after every set: a later one may die."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--what", choices=list(PLANS), default="one")
    parser.add_argument("--deepspeed-python", help="interpreter with zbench (pip install -e .) and DeepSpeed")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender")
    parser.add_argument("--cells", type=int, help="how many cells, from the first on [all]")
    given = parser.parse_args()
    plan, pythons = PLANS[given.what], interpreters(given.deepspeed_python)
    versions = deepspeed_versions(given.deepspeed_python)
    kept = results.Kept(given.out)
    for cell, (index, together) in itertools.product(plan.cells[: given.cells], enumerate(plan.sets)):
        for matches in ([match] for match in together) if cell.is_wide else [together]:
            modes = contenders(cell, matches, pythons)
            done = {
                mode
                for finding in kept.findings
                if finding["set"] == index and Cell(**finding["cell"]) == cell
                for mode in finding["figures"]
            }
            if len(modes) < 2 or done.issuperset(match.ours for match in matches):
                continue
            figures = measure(cell, modes, pythons, given.rounds)
            samples = {mode: asdict(one) for mode, one in figures.items()}
            kept.add({"cell": asdict(cell), "set": index, "figures": samples})
            results.write(given.out, table(kept.findings, plan), {"sets": kept.findings}, software=versions)
    print(table(kept.findings, plan))


if __name__ == "__main__":
    main()
