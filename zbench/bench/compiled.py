"""Compiled ZeRO-1 beside eager ZeRO-1 and beside DDP, compiled and eager: steps, first steps, peaks.

    python -m zbench.bench.compiled [--rounds N] [--out FILE]

Every contender is a process group of its own (2 gloo ranks, 1 thread each). First steps are taken one
contender after the other, with caches that are empty directories of their own; steps in interleaved turns, so
that a drift of the machine hits all alike. Peaks are bytes torch's CPU allocator had handed out at once.
`alone` does not communicate: its ratio is what the compiler itself gains on this model.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.bench.turns import WORLD, Contender, Figures, RankProgram, take_turns

EAGER, COMPILED, DDP, PLAIN = "zbench-1", "zbench-1-inductor", "ddp-inductor", "alone-inductor"
CONTENDERS = (EAGER, COMPILED, DDP, "ddp", PLAIN, "alone")


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT and a micro-batch, in the order of a contender's arguments."""

    layers: int
    width: int
    micro_batch: int
    length: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The arguments."""
        return self.layers, self.width, self.micro_batch, self.length

    def __str__(self) -> str:
        return f"{self.layers} x {self.width}, {self.micro_batch} x {self.length} tokens"


SHAPES = (Shape(6, 512, 2, 128), Shape(6, 256, 4, 256))
BARS = (  # ours, theirs, steps at most, peaks at most
    (COMPILED, EAGER, 0.95, 1.00),
    (COMPILED, DDP, 1.05, None),
    (PLAIN, "alone", None, None),  # what the compiler itself gains
)
FIRST_BAR = 1.25


@contextmanager
def running(
    mode: str, shape: Shape, cache: str, program: str = "zbench.bench.contender"
) -> Iterator[Contender]:
    """Yield a contender whose compiled code is cached under `cache`."""
    run = RankProgram(program, {"TORCHINDUCTOR_CACHE_DIR": cache})
    with closing(Contender(mode, sys.executable, size=shape.numbers, run=run)) as contender:
        yield contender


@dataclass(slots=True)
class CompiledFigures(Figures):
    """A contender's figures, and the seconds of its first step with cold caches."""

    first: float = 0.0


def steps(shape: Shape, rounds: int, scratch: Path) -> dict[str, CompiledFigures]:
    """Return every contender's first step, and its steps and peaks in interleaved turns."""
    found = {mode: CompiledFigures() for mode in CONTENDERS}
    with ExitStack() as stack:
        contenders = {}
        for mode in CONTENDERS:
            contenders[mode] = stack.enter_context(running(mode, shape, _cache(scratch, mode)))
            found[mode].first = max(answer["seconds"][0] for answer in contenders[mode].go(3))
        take_turns(contenders, found, rounds)
    return found


def _cache(scratch: Path, mode: str) -> str:
    return str(scratch / mode)


def peaks_at_update(shape: Shape, scratch: Path) -> dict[str, list[dict[str, int]]]:
    """Return what every rank says of its peak, by mode of `zbench.bench.lifetimes`."""
    found = {}
    for mode in ("released", "held"):
        with running(mode, shape, _cache(scratch, COMPILED), "zbench.bench.lifetimes") as contender:
            contender.go(2)
            found[mode] = contender.go(1)
    return found


def step_tables(shape: Shape, figures: dict[str, CompiledFigures]) -> list[str]:
    """Return ratios and figures of one shape in Markdown."""
    ratios = []
    for ours, theirs, bar, peak_bar in BARS:
        ratio = figures[ours].median / figures[theirs].median
        peaks = figures[ours].peak_bytes / max(figures[theirs].peak_bytes, 1)
        bars = [f"{b:.2f}" if b is not None else "" for b in (bar, peak_bar)]
        ratios.append([ours, theirs, f"{ratio:.3f}", bars[0], f"{peaks:.3f}", bars[1]])
    first = figures[COMPILED].first / figures[PLAIN].first
    ratios.append([f"{COMPILED}, first step, cold caches", PLAIN, f"{first:.3f}", f"{FIRST_BAR:.2f}", "", ""])
    steps = []
    for mode, f in figures.items():
        numbers = (f.median * 1e3, min(f.seconds) * 1e3, f.first, f.peak_bytes / 2**20)
        steps.append([mode, *(f"{number:.1f}" for number in numbers)])
    return [
        f"### {shape}",
        results.table(("ours", "against", "ratio of median steps", "bar", "ratio of peaks", "bar"), ratios),
        results.table(("contender", "median step, ms", "fastest", "first, s", "peak MiB per rank"), steps),
    ]


def peak_table(peaks: dict[str, list[dict[str, int]]]) -> str:
    """Return what held memory costs at the update in Markdown, one row per rank."""
    rows = []
    for rank, (low, high) in enumerate(zip(peaks["released"], peaks["held"], strict=True)):
        saved = high["peak_bytes"] - low["peak_bytes"]
        formula = high["partition_bytes"] + high["bucket_bytes"]
        rows.append([rank, high["peak_bytes"], low["peak_bytes"], saved, formula])
    columns = ("rank", "held through the step", "released", "saved", "partition + buckets")
    return results.table(columns, rows)


def main() -> None:
    """Measure, print the tables, and write them beside the samples."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="turns of two steps for each contender")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many shapes to measure")
    given = parser.parse_args()
    shapes: dict[str, Any] = {}
    tables: list[str] = []
    for shape in SHAPES[: given.shapes]:
        with tempfile.TemporaryDirectory(prefix="zbench-compiled-") as scratch:
            figures = steps(shape, given.rounds, Path(scratch))
            peaks = peaks_at_update(shape, Path(scratch))
        title = "### Peak bytes with the update as the peak"
        tables.append("\n\n".join([*step_tables(shape, figures), title, peak_table(peaks)]))
        print(tables[-1], flush=True)
        contenders = {mode: asdict(f) for mode, f in figures.items()}
        shapes[str(shape)] = {"contenders": contenders, "update_is_the_peak": peaks}
    results.write(given.out, "\n\n".join(tables), {"world_size": WORLD, "shapes": shapes})


if __name__ == "__main__":
    main()
