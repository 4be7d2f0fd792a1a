"""Two builds of zbench beside each other: the same steps of their engines in interleaved turns.

    python -m zbench.bench.builds --against PYTHON [--rounds N] [--modes zbench-3 ...] [--out FILE]

PYTHON is the interpreter of an environment with the other build (a git worktree of its commit, installed into
a venv of its own). Each contender is a process group of 2 gloo ranks with 1 thread each. Ratios are
this build's median step over the other's.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from zbench.bench import build_rank, results
from zbench.bench.turns import LAYERS, WIDTH, Contender, Figures, RankProgram, say, take_turns

MODES = ("zbench-0", "zbench-1", "zbench-2", "zbench-3", "zbench-2-offload", "zbench-3-offload")


def measure(mode: str, against: str, *, rounds: int, size: tuple[int, int]) -> tuple[Figures, Figures]:
    """Return the figures of this build and of the other one, in one mode."""
    figures = {"this": Figures(), "other": Figures()}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.copy(build_rank.__file__, folder / "build_rank.py")
        run = RankProgram("build_rank", {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"})
        contenders: dict[str, Contender] = {}
        for name, python in (("this", sys.executable), ("other", against)):
            started = Contender(mode, python, size=size, run=run)
            contenders[name] = stack.enter_context(contextlib.closing(started))
            started.go(3)
        take_turns(contenders, figures, rounds)
    return figures["this"], figures["other"]


def table(found: dict[str, tuple[Figures, Figures]]) -> str:
    """Return the medians and their ratios as Markdown."""
    lines = ["| mode | this, ms | other, ms | this / other |", "|---|---|---|---|"]
    for mode, (this, other) in found.items():
        ratio = this.median / other.median
        lines.append(f"| {mode} | {this.median * 1e3:.1f} | {other.median * 1e3:.1f} | {ratio:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every mode, print the table, and write it beside the samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", required=True, help="interpreter that has the other build")
    parser.add_argument("--rounds", type=int, default=16, help="turns of two steps for each build")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--out", type=Path, help="file to write, without its ending (.json and .md)")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the model; fewer for a quick try")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model")
    given = parser.parse_args()
    found: dict[str, tuple[Figures, Figures]] = {}
    for mode in given.modes:
        say(f"start {mode}")
        found[mode] = measure(mode, given.against, rounds=given.rounds, size=(given.layers, given.width))
    print(table(found))
    if given.out is not None:
        samples = {mode: [asdict(this), asdict(other)] for mode, (this, other) in found.items()}
        results.write(given.out, table(found), {"modes": samples}, software={})


if __name__ == "__main__":
    main()
