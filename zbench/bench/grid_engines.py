"""The engine beside its peers over a grid of shapes, dtypes, ranks and backwards a step; resumable.

    python -m zbench.bench.grid_engines [--deepspeed-python PYTHON] [--rounds N] [--cells N] --out FILE

A cell is one shape of a GPT x dtype x ranks x backwards a step; a match is what is compared in it: contenders
that hold the same of the training state, in interleaved turns, on the product's clock (`zbench.bench.engines`
says how). The ratio of a match is the mean over rounds of log(ours / theirs), a round being one turn of every
contender: two steps, or one step of four backwards; its interval is Student's, 95 %. It knows how steps vary
in one start, not how starts vary. Theirs is the peer with the least median step. Compute alone, which
communicates nothing, is measured at 2 ranks: 4 share this machine's cores.
In bfloat16 all keep float32 masters (`zbench.bench.mixed`). A match that was measured is not measured again;
the table says which are missing.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scipy.special import stdtrit

from zbench.bench import results
from zbench.bench.resumable import Kept
from zbench.bench.training import BATCH, LENGTH
from zbench.bench.turns import Contender, Figures, RankProgram, interpreters, measure_in_turns, say


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape of a GPT and how it is trained."""

    layers: int
    width: int
    vocabulary: int
    dtype: str
    ranks: int
    backwards: int

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
    bar: float
    alone: float | None = None


SHAPES = ((6, 512, 8192), (12, 384, 8192), (24, 256, 8192), (2, 1024, 16384))
CELLS = tuple(
    sorted(
        (
            Cell(*shape, dtype, ranks, backwards)
            for ranks, backwards, dtype, shape in itertools.product(
                (2, 4), (1, 4), ("float32", "bfloat16"), SHAPES
            )
        ),
        key=lambda cell: cell.is_wide and cell.backwards == 4,  # the longest last: half an hour each
    )
)
MATCHES = (
    Pairing("zbench-0", ("ddp", "zero_redundancy"), 1.00, 1.10),
    Pairing("zbench-1", ("ddp", "zero_redundancy"), 1.00, 1.10),
    Pairing("zbench-2", ("deepspeed-2",), 0.70, 1.10),
    Pairing("zbench-3", ("fsdp2",), 0.75, 1.15),
    Pairing("zbench-2-offload", ("deepspeed-2-offload",), 0.70),
    Pairing("zbench-2-offload-speculative", ("deepspeed-2-offload",), 0.65),
)
SETS = (MATCHES[:2], MATCHES[2:4], MATCHES[4:])
"""Matches measured together, so that few processes are alive at once; of a wide cell each by itself."""

MATCH_COLUMNS = (
    *("ours", "cells", "median", "best cell", "worst cell", "bar"),
    *("against compute alone, median", "bar"),
)
CELL_COLUMNS = (
    *("cell", "ours", "theirs", "ratio (95 %)", "peak MiB per rank, ours / theirs"),
    "peak RSS MiB, ours / theirs",
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
    size, run = (cell.layers, cell.width, BATCH, LENGTH), RankProgram(environment=environment)
    say(str(cell))
    start = partial(Contender, size=size, world=cell.ranks, run=run)
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


def best(found: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> str | None:
    """Return the peer with the least median step, None where none was measured."""
    present = [name for name in names if name in found]
    return min(present, key=lambda name: statistics.median(found[name]["seconds"]), default=None)


def rows(kept: Sequence[Mapping[str, Any]]) -> list[tuple[Cell, Pairing, str, Mapping[str, Any]]]:
    """Return (cell, match, the best peer, the figures of its set), for all that was measured."""
    found = []
    for one in kept:
        for match in SETS[one["set"]]:
            peer = best(one["figures"], match.theirs)
            if match.ours in one["figures"] and peer is not None:
                found.append((Cell(**one["cell"]), match, peer, one["figures"]))
    return found


def table(kept: Sequence[Mapping[str, Any]]) -> str:
    """Return the summary of each match and every cell, as Markdown."""
    measured = rows(kept)
    matches, cells = [], []
    for match in MATCHES:
        mine = [(cell, peer, figures) for cell, one, peer, figures in measured if one == match]
        ratios = [_ratio(cell, figures, match.ours, peer).value for cell, peer, figures in mine]
        if ratios:
            alone = [
                _ratio(c, f, match.ours, "alone").value for c, _, f in mine if match.alone and "alone" in f
            ]
            last = [f"{statistics.median(alone):.2f}", f"{match.alone:.2f}"] if alone else ["-", "-"]
            numbers = (statistics.median(ratios), min(ratios), max(ratios), match.bar)
            matches.append([match.ours, len(ratios), *(f"{number:.2f}" for number in numbers), *last])
    for cell, match, peer, figures in measured:
        ours, theirs = figures[match.ours], figures[peer]
        peaks, rss = (
            f"{ours[key] / 2**20:.0f} / {theirs[key] / 2**20:.0f}" for key in ("peak_bytes", "rss_bytes")
        )
        cells.append([cell, match.ours, peer, _ratio(cell, figures, match.ours, peer), peaks, rss])
    return "\n\n".join(
        [
            f"{len(measured)} of {len(CELLS) * len(MATCHES)} matches measured.",
            results.table(MATCH_COLUMNS, matches),
            results.table(CELL_COLUMNS, cells),
        ]
    )


def _ratio(cell: Cell, figures: Mapping[str, Mapping[str, Any]], ours: str, theirs: str) -> Ratio:
    return Ratio.of(figures[ours]["seconds"], figures[theirs]["seconds"], cell.turn)


def main() -> None:
    """Measure what is missing, writing the table after every set."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--deepspeed-python", help="interpreter that has DeepSpeed and zbench")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender")
    parser.add_argument("--cells", type=int, default=len(CELLS), help="how many cells, from the first on")
    given = parser.parse_args()
    pythons = interpreters(given.deepspeed_python)
    kept = Kept(given.out)
    done = {(Cell(**one["cell"]), mode) for one in kept.found for mode in one["figures"]}
    for cell, (index, together) in itertools.product(CELLS[: given.cells], enumerate(SETS)):
        for matches in ([match] for match in together) if cell.is_wide else [together]:
            modes = contenders(cell, matches, pythons)
            if len(modes) < 2 or all((cell, match.ours) in done for match in matches):
                continue
            figures = measure(cell, modes, pythons, given.rounds)
            found = {mode: asdict(one) for mode, one in figures.items()}
            kept.add({"cell": asdict(cell), "set": index, "figures": found})
            results.write(given.out, table(kept.found), {"sets": kept.found})
    print(table(kept.found))


if __name__ == "__main__":
    main()
