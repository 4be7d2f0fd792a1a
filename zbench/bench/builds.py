"""Two builds of zbench beside each other: the same steps of their engines in interleaved turns.

    python -m zbench.bench.builds --against PYTHON [--rounds N] [--modes zbench-3 ...] [--out FILE]

PYTHON is the interpreter of an environment with the other build (a git worktree of its commit, installed into
a venv of its own). Each contender is a process group of 2 gloo ranks with 1 thread each. Ratios are
this build's median step over the other's.
"""

import shutil
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from zbench.bench import build_rank, results
from zbench.bench.turns import LAYERS, WIDTH, Contender, Figures, RankProgram, measure_in_turns, say

MODES = ("zbench-0", "zbench-1", "zbench-2", "zbench-3", "zbench-2-offload", "zbench-3-offload")


def measure(mode: str, against: str, *, rounds: int, size: tuple[int, int]) -> tuple[Figures, Figures]:
    """Return the figures of this build and of the other one, in one mode."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(build_rank.__file__, Path(folder) / "build_rank.py")
        run = RankProgram("build_rank", {"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"})
        pythons = {"this": sys.executable, "other": against}
        starts = {name: partial(Contender, mode, pythons[name], size=size, run=run) for name in pythons}
        figures = measure_in_turns(starts, rounds)
    return figures["this"], figures["other"]


def table(found: dict[str, tuple[Figures, Figures]]) -> str:
    """Return the medians and their ratios as Markdown."""
    rows = [
        (mode, f"{this.median * 1e3:.1f}", f"{other.median * 1e3:.1f}", f"{this.median / other.median:.3f}")
        for mode, (this, other) in found.items()
    ]
    return results.table(("mode", "this, ms", "other, ms", "this / other"), rows)


def main() -> None:
    """Measure every mode, print the table, and write it beside the samples."""
    parser = results.parser(__doc__)
    parser.add_argument("--against", required=True, help="interpreter that has the other build")
    parser.add_argument("--rounds", type=int, default=16, help="turns of two steps for each build")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the model; fewer for a quick try")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model")
    given = parser.parse_args()
    found: dict[str, tuple[Figures, Figures]] = {}
    for mode in given.modes:
        say(mode)
        found[mode] = measure(mode, given.against, rounds=given.rounds, size=(given.layers, given.width))
    print(table(found))
    samples = {mode: [asdict(this), asdict(other)] for mode, (this, other) in found.items()}
    results.write(given.out, table(found), {"modes": samples})


if __name__ == "__main__":
    main()
