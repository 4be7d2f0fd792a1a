"""Removes each wait of the engine in turn and runs far-memory schedules: each removal must make one fail.

    python -m tests.engine.far_memory.mutate_waits             # every wait that can be missed
    python -m tests.engine.far_memory.mutate_waits masters     # those in files whose path contains the word
    python -m tests.engine.far_memory.mutate_waits --all       # also those that `waits.py` gives a reason for

The working tree is not touched: an import hook removes the call in the test processes. `waits.py` lists every
wait; one that no schedule misses needs a reason there, and is else `SURVIVED`: the exit code is 1 then.
"""

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType

from tests.engine.far_memory.waits import REASONS

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "zbench" / "engine"
NAMES = {
    *("wait", "release", "settle", "collect", "_arrive", "_let_go", "_collect"),
    *("synchronize", "wait_stream", "wait_event", "record_stream"),
    *("_complete_down_to", "_reuse_scratch"),
}
WITH_ARGUMENTS = {"wait_stream", "wait_event", "record_stream", "_complete_down_to", "_reuse_scratch"}
SCHEDULES, AT_ONCE = 10 * 18, 9
NOTICED = 9  # exit code
PATIENCE = 900.0  # seconds


@dataclass(frozen=True)
class Site:
    """A call that waits, or a wait that is handed on to be called (`submit(copy.wait)`). number: of those
    with the same text in the same file.
    """

    path: Path
    line: int
    column: int
    text: str
    number: int

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ENGINE))

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    @property
    def key(self) -> str:
        return f"{self.name} {self.text}" + (f" #{self.number}" if self.number > 1 else "")


def sites() -> Iterator[Site]:
    """Yield every wait in the engine, in the order of files and lines."""
    for path in sorted(ENGINE.rglob("*.py")):
        found = [wait for node in ast.walk(ast.parse(path.read_text())) for wait in _waits(node)]
        seen: Counter[str] = Counter()
        for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
            text = ast.unparse(node)
            seen[text] += 1
            yield Site(path, node.lineno, node.col_offset, text, seen[text])


def _waits(node: ast.AST) -> Iterator[ast.expr]:
    """Yield a call if it waits, and those of its arguments that are waits."""
    if isinstance(node, ast.Call):
        yield from (a for a in node.args if isinstance(a, ast.Attribute) and a.attr == "wait")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in NAMES and bool(node.args) == (name in WITH_ARGUMENTS):
            yield node


class _Without(ast.NodeTransformer):
    """Takes the wait at one place out of a module."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def visit(self, node: ast.AST) -> ast.AST:
        place = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        if place == (self._site.line, self._site.column) and ast.unparse(node) == self._site.text:
            nothing = "None" if isinstance(node, ast.Call) else "lambda: None"
            if isinstance(node, ast.Expr):
                return self.generic_visit(node)
            return ast.copy_location(ast.parse(nothing, mode="eval").body, node)
        return self.generic_visit(node)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, site: Site) -> None:
        super().__init__(name, path)
        self._site = site

    def get_code(self, name: str) -> CodeType:
        tree = _Without(self._site).visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the engine's modules beside this file, one of them without a wait."""

    def __init__(self, site: Site | None) -> None:
        self._site = site

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        base = ROOT.joinpath(*name.split("."))
        for file, folder in ((base.with_suffix(".py"), None), (base / "__init__.py", [str(base)])):
            if name.split(".")[0] == "zbench" and file.exists():
                loader = None
                if self._site is not None and name == self._site.module:
                    loader = _Loader(name, str(file), self._site)
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=folder
                )
        return None


def noticed(site: Site | None) -> bool:
    """Whether a schedule fails without this wait; a hang counts. In a fork of this process."""
    child = os.fork()
    if child == 0:
        os.setsid()
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        code = 0
        try:
            sys.meta_path.insert(0, _Finder(site))
            run_schedules()
        except BaseException as error:
            code = NOTICED
            if site is None:
                print(f"without any removal: {error}", file=sys.__stderr__, flush=True)
        os._exit(code)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL) if not ended else None
    return not ended or status != 0


def run_schedules() -> None:
    """Run the model of a device's streams, then schedules, until one fails."""
    import torch

    from tests.engine.far_memory.lattice import check, drawn
    from tests.engine.far_memory.units import CHECKS
    from tests.engine.ranks import RankPool

    torch.set_num_threads(1)
    for unit in CHECKS:
        unit()
    pool = RankPool(3, timeout=90.0, fork_here=True)
    pool.run(3, "tests.engine.far_memory.cases:run", [])  # before this process computes references
    try:
        for begin in range(0, SCHEDULES, AT_ONCE):
            check(pool, [drawn(seed) for seed in range(begin, begin + AT_ONCE)])
    finally:
        pool.close()


def main() -> int:
    """Print a line for each wait; return 1 if one survived without a reason."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("word", nargs="?", default="", help="only files whose path contains this")
    parser.add_argument("--all", action="store_true", help="also try those that have a reason")
    options = parser.parse_args()
    import torch  # once, for all forks

    importlib.import_module("torch.distributed")
    importlib.import_module("torch._dynamo")
    torch.set_num_threads(1)
    if noticed(None):
        raise SystemExit("the schedules fail with every wait in place")
    counts: Counter[str] = Counter()
    for site in sites():
        reason = REASONS[site.key]
        if options.word in site.name:
            caught = (not reason or options.all) and noticed(site)
            what = "caught" if caught else f"kept: {reason}" if reason else "SURVIVED"
            counts[what.partition(":")[0]] += 1
            print(f"{site.name}:{site.line}  {site.text}  {what}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return int(counts["SURVIVED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
