"""Runs the sweeps of `sweeps/benchmarks`, and writes their tables into pages; `make benchmarks` calls it.

    python -m tools.benchmarks.sweeps [NAME ...] [--set KEY=VALUE ...] [--pages]

Runs are in `build/benchmarks`; one that is there is continued, and measured no further when it is complete
(remove its directory to begin anew). Its records are stored as `results/benchmarks/NAME.json`. Then every
block of a page that begins with

    <!-- zbench report results/benchmarks/NAME.json ... -->

and ends with `<!-- end -->` gets what that command prints; what was not measured yet stays as it is.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tools.benchmarks.results import say

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = ROOT / "sweeps" / "benchmarks"
RUNS = Path("build/benchmarks")
RESULTS = Path("results/benchmarks")
PAGES = (ROOT / "README.md", ROOT / RESULTS / "sweeps.md")
GOES_ON = (0, 3, 4, 6)
"""Exit codes of a sweep that ran to its end, whatever its rows say."""

_BLOCK = re.compile(
    r"(<!-- (zbench report results/benchmarks/(\w+).json[^\n]*) -->\n).*?(\n<!-- end -->)", re.DOTALL
)


def zbench(*words: str, cwd: Path, capture: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run a command of this environment's zbench."""
    command = [sys.executable, "-c", "from zbench.cli.main import main; main()", *words]
    return subprocess.run(
        command, cwd=cwd, text=True, check=False, stdout=subprocess.PIPE if capture else None
    )


def run(file: Path, settings: list[str], root: Path = ROOT) -> int:
    """Run a sweep, or what is missing of its newest run, and store its records; return the exit code."""
    name = file.stem
    runs = str(RUNS)
    begun = sorted((root / RUNS / name).glob("*/trials.jsonl"))
    resume = ["--resume", str(begun[-1].parent.relative_to(root))] if begun else []
    sets = [word for setting in settings for word in ("--set", setting)]
    code = zbench("sweep", str(file.relative_to(root)), "-o", runs, *resume, *sets, cwd=root).returncode
    if code in GOES_ON:
        zbench("compare", name, "--save-baseline", name, "-o", runs, "-q", cwd=root)
        (root / RESULTS).mkdir(parents=True, exist_ok=True)
        shutil.copy(root / RUNS / "baselines" / f"{name}.json", root / RESULTS)
    return code


def filled(text: str, root: Path = ROOT) -> str:
    """Return a page with the tables of all records that are stored."""

    def block(match: re.Match[str]) -> str:
        begin, command, name, end = match.groups()
        if not (root / RESULTS / f"{name}.json").exists():
            return match[0]
        done = zbench(*shlex.split(command)[1:], cwd=root, capture=True)
        return f"{begin}\n{done.stdout.strip()}\n{end}" if done.returncode == 0 else match[0]

    return _BLOCK.sub(block, text)


def main() -> int:
    """Run what is asked for, and write the pages after each sweep: a later one may be interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(file.stem for file in SWEEPS.glob("*.yaml"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} [all]")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as `zbench sweep` has it"
    )
    parser.add_argument("--pages", action="store_true", help="measure nothing; write the pages")
    given = parser.parse_args()
    if unknown := set(given.names) - set(known):
        parser.error(f"no sweep {', '.join(sorted(unknown))}; there is {', '.join(known)}")
    for name in [] if given.pages else given.names or known:
        say(name)
        code = run(SWEEPS / f"{name}.yaml", given.set)
        if code not in GOES_ON:
            return code
        _write_pages()
    _write_pages()
    return 0


def _write_pages() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
