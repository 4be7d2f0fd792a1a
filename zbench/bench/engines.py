"""The engine beside its peers: the same GPT step in interleaved turns; ratios of medians, peaks per rank.

    python -m zbench.bench.engines [--deepspeed-python PYTHON] [--rounds N] [--out FILE]

Every contender is a process group of its own (2 gloo ranks, 1 thread each) that lives as long as its set is
measured. `zbench sweep`'s own builders make it (`zbench.peers`, `zbench.engine`) and its clock times it: all
ranks begin together, the slowest rank's time counts. Peak bytes are the most that torch's CPU allocator had
handed out at once during the measured steps.
"""

import argparse
import subprocess
from dataclasses import asdict
from functools import partial

from zbench.bench import results
from zbench.bench.turns import LAYERS, WIDTH, WORLD, Contender, Figures, interpreters, measure_in_turns

SETS = (
    ("alone", "ddp", "zero_redundancy", "zbench-0", "zbench-1", "zbench-2"),
    ("alone", "ddp", "fsdp2", "deepspeed-2", "deepspeed-3", "zbench-2", "zbench-3"),
    (
        *("alone", "deepspeed-2-offload", "deepspeed-3-offload"),
        *("zbench-2-offload", "zbench-3-offload", "zbench-3-offload-speculative"),
    ),
)
BARS = (  # set, ours, theirs (the better of several), at most
    (0, "zbench-0", ("ddp",), 1.00),
    (0, "zbench-1", ("zero_redundancy",), 0.95),
    (1, "zbench-2", ("deepspeed-2",), 0.70),
    (0, "zbench-2", ("ddp",), 1.00),
    (1, "zbench-3", ("fsdp2", "deepspeed-3"), 0.75),
    (2, "zbench-2-offload", ("deepspeed-2-offload",), 0.80),
    (2, "zbench-3-offload", ("deepspeed-3-offload",), 0.70),
    (2, "zbench-3-offload-speculative", ("deepspeed-3-offload",), 0.65),
    (0, "zbench-0", ("alone",), 1.15),
    (0, "zbench-1", ("alone",), 1.15),
    (0, "zbench-2", ("alone",), 1.15),
    (1, "zbench-3", ("alone",), 1.30),
)


def measure(
    modes: list[str], pythons: dict[str, str], *, rounds: int, size: tuple[int, int]
) -> dict[str, Figures]:
    """Return the figures of contenders that take turns."""
    starts = {mode: partial(Contender, mode, pythons[mode.split("-")[0]], size=size) for mode in modes}
    return measure_in_turns(starts, rounds)


def table(sets: dict[int, dict[str, Figures]]) -> str:
    """Return the bars and the figures behind them as Markdown."""
    ratios = []
    for index, ours, rivals, bar in BARS:
        found = sets.get(index, {})
        present = [r for r in rivals if r in found]
        if ours not in found or not present:
            continue
        theirs = min(present, key=lambda r: found[r].median)
        ratio = found[ours].median / found[theirs].median
        memory = found[ours].peak_bytes / max(found[theirs].peak_bytes, 1)
        ratios.append((ours, theirs, f"{ratio:.3f}", f"{bar:.2f}", f"{memory:.3f}"))
    figures = [
        (i + 1, mode, f"{f.median * 1e3:.1f}", f"{f.peak_bytes / 2**20:.1f}", f"{f.rss_bytes / 2**20:.0f}")
        for i, found in sets.items()
        for mode, f in found.items()
    ]
    peaks = "peak bytes per rank, ours / theirs"
    columns = ("set", "contender", "median step, ms", "peak MiB per rank", "peak RSS MiB")
    return "\n\n".join(
        [
            results.table(("ours", "against", "ratio of medians", "bar", peaks), ratios),
            results.table(columns, figures),
        ]
    )


def main() -> None:
    """Measure every set, print the table, and write it beside the samples."""
    parser = results.parser(__doc__)
    parser.add_argument(
        "--deepspeed-python", help="interpreter that has DeepSpeed and zbench (pip install -e . deepspeed)"
    )
    parser.add_argument("--rounds", type=int, default=8, help="turns of two steps for each contender")
    parser.add_argument("--sets", type=int, nargs="*", default=[1, 2, 3], help="which sets to measure")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the GPT; fewer for a quick try")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the GPT")
    given = parser.parse_args()
    pythons = interpreters(given.deepspeed_python)
    samples: dict[int, dict[str, Figures]] = {}
    for index in (number - 1 for number in given.sets):
        modes = [mode for mode in SETS[index] if mode.split("-")[0] in pythons]
        samples[index] = measure(modes, pythons, rounds=given.rounds, size=(given.layers, given.width))
        _write(samples, given)  # after each set: a later one may die
    print(table(samples))


def _write(samples: dict[int, dict[str, Figures]], given: argparse.Namespace) -> None:
    versions = {}
    if given.deepspeed_python:
        ask = "from importlib.metadata import version; print(version('deepspeed'), version('torch'))"
        command = [given.deepspeed_python, "-c", ask]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        versions = dict(zip(("deepspeed", "deepspeed's torch"), told.split(), strict=True))
    results.write(
        given.out,
        f"GPT of {given.layers} layers of {given.width}, {WORLD} ranks of one thread.\n\n{table(samples)}",
        {"sets": {i + 1: {m: asdict(f) for m, f in found.items()} for i, found in samples.items()}},
        software=versions,
    )


if __name__ == "__main__":
    main()
