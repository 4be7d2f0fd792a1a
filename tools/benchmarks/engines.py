"""The engine beside its peers: the same GPT step in interleaved turns; ratios, peaks per rank. Resumable.

    python -m tools.benchmarks.engines [--what one|grid|compiled] [--deepspeed-python PYTHON] --out FILE

`one` is a GPT of 27 M parameters on 2 ranks; `grid` four shapes x dtype x ranks x backwards a step;
`compiled` sets compiled ZeRO-1 beside eager ZeRO-1 and compiled DDP. Every contender is a process group of
its own (gloo, 1 thread a rank) that lives as long as its match. `zbench sweep`'s own builders make it and its
clock times it: all ranks begin together, the slowest rank's time counts. Peak bytes are the most that torch's
CPU allocator had handed out at once during the measured steps.

The ratio of a match is the mean over rounds of log(ours / theirs), a round being one turn of every contender:
two steps, or one step of four backwards; its interval is Student's, 95 %. It knows how steps vary in one
start, not how starts vary. Theirs is the peer with the least median step. `alone` communicates nothing, and
is measured at 2 ranks: 4 share this machine's cores. In bfloat16 all keep float32 masters
(`tools.benchmarks.mixed`). A match that was measured is not measured again.
"""

import itertools
import math
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scipy.stats import ttest_1samp

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
    def turn(self) -> int:
        """Steps of a contender's turn."""
        return 2 if self.backwards == 1 else 1

    def __str__(self) -> str:
        """Return it as the table shows it."""
        return f"{self.layers} x {self.width}, {self.dtype}, {self.ranks} ranks, {self.backwards} backwards"


@dataclass(frozen=True, slots=True)
class Pairing:
    """What is compared: ours with the best of theirs, and the ratio that it should not exceed."""

    ours: str
    theirs: tuple[str, ...]
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells, and the matches that are measured in each."""

    cells: tuple[Cell, ...]
    matches: tuple[Pairing, ...]


SHAPES = ((6, 512, 8192), (12, 384, 8192), (24, 256, 8192), (2, 1024, 16384))
GRID = tuple(
    Cell(*shape, dtype, ranks, backwards)
    for ranks, backwards, dtype, shape in itertools.product((2, 4), (1, 4), ("float32", "bfloat16"), SHAPES)
)
TORCHS = ("ddp", "zero_redundancy")
PLANS = {
    "one": Plan(
        (Cell(6, 512),),
        (
            Pairing("zbench-0", ("ddp",), 1.00),
            Pairing("zbench-1", ("zero_redundancy",), 0.95),
            Pairing("zbench-2", ("ddp",), 1.00),
            Pairing("zbench-2", ("deepspeed-2",), 0.70),
            Pairing("zbench-3", ("fsdp2", "deepspeed-3"), 0.75),
            *(Pairing(f"zbench-{stage}", ("alone",), 1.15) for stage in (0, 1, 2)),
            Pairing("zbench-3", ("alone",), 1.30),
            Pairing("zbench-2-offload", ("deepspeed-2-offload",), 0.80),
            Pairing("zbench-3-offload", ("deepspeed-3-offload",), 0.70),
            Pairing("zbench-3-offload-speculative", ("deepspeed-3-offload",), 0.65),
        ),
    ),
    "grid": Plan(
        GRID,
        (
            Pairing("zbench-0", TORCHS, 1.00),
            Pairing("zbench-1", TORCHS, 1.00),
            Pairing("zbench-2", ("deepspeed-2",), 0.70),
            Pairing("zbench-3", ("fsdp2",), 0.75),
            *(Pairing(f"zbench-{stage}", ("alone",), 1.10) for stage in (0, 1, 2)),
            Pairing("zbench-3", ("alone",), 1.15),
            Pairing("zbench-2-offload", ("deepspeed-2-offload",), 0.70),
            Pairing("zbench-2-offload-speculative", ("deepspeed-2-offload",), 0.65),
        ),
    ),
    "compiled": Plan(
        (Cell(6, 512), Cell(6, 256, micro_batch=4, length=256)),
        (
            Pairing("zbench-1-inductor", ("zbench-1",), 0.95),
            Pairing("zbench-1-inductor", ("ddp-inductor",), 1.05),
            Pairing("alone-inductor", ("alone",)),  # what the compiler itself gains
        ),
    ),
}

MATCH_COLUMNS = ("ours", "against", "cells", "median", "best cell", "worst cell", "bar")
CELL_COLUMNS = (
    *("cell", "ours", "theirs", "ratio (95 %)", "median steps, ms"),
    *("peak MiB per rank, ours / theirs", "peak RSS MiB"),
)


def contenders(cell: Cell, match: Pairing, pythons: Mapping[str, str]) -> list[str]:
    """Return the modes to start: those that this machine has and the cell allows."""
    lacking = {"zero_redundancy"} if cell.dtype == "bfloat16" else set()
    if cell.ranks > 2:
        lacking.add("alone")
    has = pythons.keys() - lacking
    return [mode for mode in (match.ours, *match.theirs) if mode.split("-")[0] in has]


def measure(cell: Cell, modes: Sequence[str], pythons: Mapping[str, str], rounds: int) -> dict[str, Figures]:
    """Return the figures of contenders that take turns."""
    backwards, vocabulary = str(cell.backwards), str(cell.vocabulary)
    environment = {"DTYPE": cell.dtype, "BACKWARDS": backwards, "VOCABULARY": vocabulary}
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
        interval = ttest_1samp(logs, 0.0).confidence_interval(0.95)
        return cls(*(math.exp(end) for end in (statistics.fmean(logs), interval.low, interval.high)))

    def __str__(self) -> str:
        """Return it with its interval."""
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def _turns(seconds: Sequence[float], turn: int) -> list[float]:
    return [sum(steps) / turn for steps in zip(*[iter(seconds)] * turn, strict=True)]


@dataclass(frozen=True, slots=True)
class Measured:
    """One match of one cell, and the figures of its contenders."""

    cell: Cell
    match: Pairing
    figures: Mapping[str, Mapping[str, Any]]

    @property
    def peer(self) -> str:
        """The peer with the least median step."""
        peers = self.figures.keys() - {self.match.ours}
        return min(sorted(peers), key=lambda name: statistics.median(self.figures[name]["seconds"]))

    @property
    def ratio(self) -> Ratio:
        """Our step times over the peer's."""
        ours, theirs = (self.figures[name]["seconds"] for name in (self.match.ours, self.peer))
        return Ratio.of(ours, theirs, self.cell.turn)

    def row(self) -> list[object]:
        """Return a row of the table of cells."""
        names = (self.match.ours, self.peer)
        steps = " / ".join(f"{statistics.median(self.figures[name]['seconds']) * 1e3:.1f}" for name in names)
        peaks, rss = (
            " / ".join(f"{self.figures[name][key] / 2**20:.0f}" for name in names)
            for key in ("peak_bytes", "rss_bytes")
        )
        return [self.cell, *names, self.ratio, steps, peaks, rss]


def table(findings: Sequence[Mapping[str, Any]], plan: Plan) -> str:
    """Return the summary of each match and every cell, as Markdown."""
    every = [Measured(Cell(**one["cell"]), plan.matches[one["match"]], one["figures"]) for one in findings]
    summary = []
    for match in plan.matches:
        ratios = [one.ratio.value for one in every if one.match == match]
        if ratios:
            numbers = (statistics.median(ratios), min(ratios), max(ratios), match.bar)
            cells = ("-" if number is None else f"{number:.2f}" for number in numbers)
            summary.append([match.ours, ", ".join(match.theirs), len(ratios), *cells])
    return "\n\n".join(
        [
            f"{len(every)} matches measured.",
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
    """Measure what is missing, writing the table after every match: a later one may die."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--what", choices=list(PLANS), default="one")
    parser.add_argument("--deepspeed-python", help="interpreter with zbench (pip install -e .) and DeepSpeed")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender")
    parser.add_argument("--cells", type=int, help="how many cells, from the first on [all]")
    given = parser.parse_args()
    plan, pythons = PLANS[given.what], interpreters(given.deepspeed_python)
    versions = deepspeed_versions(given.deepspeed_python)
    findings = results.earlier(given.out, "matches")
    done = {(Cell(**one["cell"]), one["match"]) for one in findings}
    for cell, (index, match) in itertools.product(plan.cells[: given.cells], enumerate(plan.matches)):
        modes = contenders(cell, match, pythons)
        if len(modes) < 2 or (cell, index) in done:
            continue
        figures = measure(cell, modes, pythons, given.rounds)
        samples = {mode: asdict(one) for mode, one in figures.items()}
        findings.append({"cell": asdict(cell), "match": index, "figures": samples})
        results.write(given.out, table(findings, plan), {"matches": findings}, software=versions)
    print(table(findings, plan))


if __name__ == "__main__":
    main()
