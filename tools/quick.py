"""Runs the tests nearest to the changed files, for as long as a contributor waits after a save.

    python -m tools.quick [--base REVISION] [--seconds N] [--list] [PYTEST_ARGUMENT...]

Nearest by imports: a test file that imports a changed module comes before a test file that imports an
importer of the module. Names such as `tests.engine.cases:train` in strings count as imports, because ranks
call functions by name. A changed file that is no module belongs to the test files that name the file. No test
begins later than N seconds [20] after the collection; `make test` runs every test.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("zbench", "tests", "tools")
MAX_FILES = 20  # test files: each worker imports all of them
SECONDS = 20.0
NATIVE = "zbench.engine.adam.native"  # imports the compiled csrc/
_SECONDS = "ZBENCH_QUICK_SECONDS"
_TARGET = re.compile(r"^((?:zbench|tests|tools)[\w.]+)(?::\w+)?$")


def module_name(path: PurePath) -> str:
    """Return the module of a path relative to the repository."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Return every module of the repository with its file."""
    paths = (path for folder in SOURCES for path in sorted(ROOT.glob(f"{folder}/**/*.py")))
    return {module_name(path.relative_to(ROOT)): path for path in paths}


def imported(source: str, known: set[str]) -> set[str]:
    """Return the modules among `known` that a module imports or names in a string."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner if inner <= known else {*inner, str(node.module)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(_TARGET.findall(node.value))
    return names & known


def distances(graph: dict[str, set[str]], changed: Iterable[str]) -> dict[str, int]:
    """Return how many imports lie between each module and the nearest changed module."""
    importers: dict[str, set[str]] = {}
    for name, imports in graph.items():
        for target in imports:
            importers.setdefault(target, set()).add(name)
    distance = dict.fromkeys(changed, 0)
    level = list(distance)
    while level:
        following = sorted({importer for name in level for importer in importers.get(name, ())})
        level = [name for name in following if name not in distance]
        distance |= {
            name: distance[target] + 1 for name in level for target in graph[name] if target in distance
        }
    return distance


def nearest_tests(files: Iterable[PurePath]) -> list[Path]:
    """Return the test files for changed files (relative to the repository), nearest first."""
    known = modules()
    names = set(known)
    sources = {name: path.read_text(encoding="utf-8") for name, path in known.items()}
    graph = {name: imported(source, names) for name, source in sources.items()}
    changed = {module_name(path) for path in files if path.suffix == ".py"}
    changed |= {NATIVE for path in files if path.parts[0] == "csrc"}
    changed &= names
    texts = [path.name for path in files if path.suffix != ".py"]
    naming = {name for name, source in sources.items() if any(text in source for text in texts)}
    distance = distances(graph, changed) | dict.fromkeys(naming, 1)
    folders = {PurePath(*name.split(".")[1:-1]) for name in changed}

    def key(name: str) -> tuple[int, bool, int, str]:
        *folder, _ = name.split(".")[1:]
        return distance[name], PurePath(*folder) not in folders, len(folder), name

    tests = [name for name in distance if name.rpartition(".")[2].startswith("test_")]
    return [known[name] for name in sorted(tests, key=key)[:MAX_FILES]]


def changed_files(base: str) -> list[PurePath]:
    """Return the files that differ from a revision, and files that git does not know yet."""
    commands = (["diff", "--name-only", base, "--"], ["ls-files", "--others", "--exclude-standard"])
    outputs = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        for words in commands
    )
    return [PurePath(line) for output in outputs for line in output.stdout.splitlines()]


class Deadline:
    """A plugin of pytest: skips tests that would begin later than `seconds` after the collection."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = float("inf")

    def pytest_collection_finish(self) -> None:
        self._end = time.monotonic() + self._seconds

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end:
            pytest.skip("the time of `make quick` is over: `make test` runs this test")


def pytest_configure(config: pytest.Config) -> None:
    """Set the deadline; each worker of pytest-xdist loads this module as a plugin, too."""
    config.pluginmanager.register(Deadline(float(os.environ[_SECONDS])))


def main() -> int:
    """Return pytest's exit code, 0 if no test file is near."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.quick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # pytest's arguments pass as they are
    )
    parser.add_argument(
        "--base", default="HEAD", metavar="REVISION", help="compare with this revision [HEAD]"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"[{SECONDS:g}]")
    parser.add_argument("--list", action="store_true", help="print the test files and run nothing")
    given, arguments = parser.parse_known_args()
    tests = [str(path.relative_to(ROOT)) for path in nearest_tests(changed_files(given.base))]
    print(*tests or ["no test file imports or names a changed file"], sep="\n", flush=True)
    if given.list or not tests:
        return 0
    words = ["-m", "pytest", "-p", "tools.quick", "--dist", "loadfile", "--no-loadscope-reorder", *arguments]
    environment = {**os.environ, _SECONDS: str(given.seconds)}
    return subprocess.run([sys.executable, *words, *tests], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
