"""Two builds of zbench beside each other: the same steps of their engines in interleaved turns.

    python -m tools.benchmarks.builds --against PYTHON [--rounds N] [--modes zbench-3 ...] [--out FILE]

PYTHON is the interpreter of an environment with the other build (a git worktree of its commit, installed into
a venv of its own). Each contender is a process group of 2 gloo ranks with 1 thread each, and runs a copy of
`build_rank.py`. Ratios are this build's median step over the other's.
"""

import shutil
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tools.benchmarks import results
from tools.benchmarks.turns import LAYERS, WIDTH, Contender, Figures, measure_in_turns

MODES = ("zbench-0", "zbench-1", "zbench-2", "zbench-3", "zbench-2-offload", "zbench-3-offload")
MODES += ("zbench-3-offload-speculative",)


def measure(mode: str, against: str, *, rounds: int, size: tuple[int, int]) -> dict[str, Figures]:
    """Return the figures of `this` build and of the `other` one, in one mode."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(Path(__file__).with_name("build_rank.py"), folder)
        environment = {"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}
        start = partial(Contender, size=size, program="build_rank", environment=environment)
        pythons = {"this": sys.executable, "other": against}
        starts = {name: partial(start, mode, python) for name, python in pythons.items()}
        return measure_in_turns(starts, rounds)


def table(figures: dict[str, dict[str, Figures]]) -> str:
    """Return the medians and their ratios as Markdown."""
    rows = []
    for mode, builds in figures.items():
        this, other = builds["this"].median, builds["other"].median
        rows.append((mode, f"{this * 1e3:.1f}", f"{other * 1e3:.1f}", f"{this / other:.3f}"))
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
    figures: dict[str, dict[str, Figures]] = {}
    for mode in given.modes:
        results.say(mode)
        figures[mode] = measure(mode, given.against, rounds=given.rounds, size=(given.layers, given.width))
    print(table(figures))
    samples = {mode: {name: asdict(one) for name, one in of.items()} for mode, of in figures.items()}
    results.write(given.out, table(figures), {"modes": samples})


if __name__ == "__main__":
    main()
