"""The engine beside its peers: the same GPT step in interleaved turns; ratios of medians, peaks per rank.

    python -m zbench.bench.engines [--deepspeed-python PYTHON] [--rounds N] [--out FILE]

Every contender is a process group of its own (2 gloo ranks, 1 thread each) that lives as long as its set is
measured. `zbench sweep`'s own builders make it (`zbench.peers`, `zbench.engine`) and its clock times it: all
ranks begin together, the slowest rank's time counts. Peak bytes are the most that torch's CPU allocator had
handed out at once during the measured steps.
"""

import argparse
import contextlib
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from zbench.bench import results
from zbench.bench.turns import LAYERS, WIDTH, WORLD, Contender, Figures, say, take_turns

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
    figures = {mode: Figures() for mode in modes}
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for mode in modes:  # one by one: some compile parts of themselves when they start
            say(f"start {mode}")
            started = Contender(mode, pythons[mode.split("-")[0]], size=size)
            contenders[mode] = stack.enter_context(contextlib.closing(started))
            started.go(3)
        take_turns(contenders, figures, rounds)
    return figures


def table(sets: dict[int, dict[str, Figures]]) -> str:
    """Return the bars and the figures behind them as Markdown."""
    lines = [
        "| ours | against | ratio of medians | bar | peak bytes per rank, ours / theirs |",
        "|---|---|---|---|---|",
    ]
    for index, ours, rivals, bar in BARS:
        found = sets.get(index, {})
        present = [r for r in rivals if r in found]
        if ours not in found or not present:
            continue
        theirs = min(present, key=lambda r: found[r].median)
        ratio = found[ours].median / found[theirs].median
        memory = found[ours].peak_bytes / max(found[theirs].peak_bytes, 1)
        lines.append(f"| {ours} | {theirs} | {ratio:.3f} | {bar:.2f} | {memory:.3f} |")
    lines += [
        "",
        "| set | contender | median step, ms | peak MiB per rank | peak RSS MiB |",
        "|---|---|---|---|---|",
    ]
    for index, found in sets.items():
        for mode, f in found.items():
            peaks = f"{f.peak_bytes / 2**20:.1f} | {f.rss_bytes / 2**20:.0f}"
            lines.append(f"| {index + 1} | {mode} | {f.median * 1e3:.1f} | {peaks} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every set, print the table, and write it beside the samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--deepspeed-python", help="interpreter that has DeepSpeed and zbench (pip install -e . deepspeed)"
    )
    parser.add_argument("--rounds", type=int, default=8, help="turns of two steps for each contender")
    parser.add_argument("--sets", type=int, nargs="*", default=[1, 2, 3], help="which sets to measure")
    parser.add_argument("--out", type=Path, help="file to write, without its ending (.json and .md)")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the GPT; fewer for a quick try")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the GPT")
    given = parser.parse_args()
    pythons = dict.fromkeys(("alone", "ddp", "zero_redundancy", "fsdp2", "zbench"), sys.executable)
    if given.deepspeed_python:
        pythons["deepspeed"] = given.deepspeed_python
    samples: dict[int, dict[str, Figures]] = {}
    for index in (number - 1 for number in given.sets):
        modes = [mode for mode in SETS[index] if mode.split("-")[0] in pythons]
        samples[index] = measure(modes, pythons, rounds=given.rounds, size=(given.layers, given.width))
        if given.out is not None:  # after each set: a later one may die
            _write(given.out, samples, given)
    print(table(samples))


def _write(out: Path, samples: dict[int, dict[str, Figures]], given: argparse.Namespace) -> None:
    versions = {}
    if given.deepspeed_python:
        ask = "from importlib.metadata import version; print(version('deepspeed'), version('torch'))"
        command = [given.deepspeed_python, "-c", ask]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        versions = dict(zip(("deepspeed", "deepspeed's torch"), told.split(), strict=True))
    results.write(
        out,
        f"GPT of {given.layers} layers of {given.width}, {WORLD} ranks of one thread.\n\n{table(samples)}",
        {"sets": {i + 1: {m: asdict(f) for m, f in found.items()} for i, found in samples.items()}},
        software=versions,
    )


if __name__ == "__main__":
    main()
