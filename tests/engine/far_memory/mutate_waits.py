"""Removes each wait of the engine in turn and runs far-memory schedules: each removal must make one fail.

    python -m tests.engine.far_memory.mutate_waits             # every wait; some minutes on two cores
    python -m tests.engine.far_memory.mutate_waits masters     # those in files whose path contains the word

The working tree is not touched: an import hook removes the statement in the test processes. A wait that no
schedule misses is listed as `survived` unless EXCUSED says why none can, and ends the run with exit code 1.
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
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "zbench" / "engine"
NAMES = {
    *("wait", "release", "settle", "collect", "_arrive", "_let_go", "_collect"),
    *("synchronize", "wait_stream", "wait_event", "record_stream"),
}
NOT_WAITS = {
    "flat.release()": "frees memory",
    "self.memory.release()": "frees memory",
    "self.settle()": "counts a saved tensor",
    "kept.settle()": "counts a saved tensor",
}
SCHEDULES = 10 * 16
NOTICED = 9  # exit code
PATIENCE = 300.0  # seconds
ONLY_A_DEVICE = "only a GPU runs it: a copy's event, or the order of two streams"
EXCUSED: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Site:
    """One statement that waits, or a wait that is handed on to be called (`submit(copy.wait)`)."""

    path: Path
    line: int
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ENGINE))

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)


def sites() -> Iterator[Site]:
    """Yield every wait in the engine."""
    for path in sorted(ENGINE.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            text = ast.get_source_segment(source, node) or ""
            if _waits(node) and text not in NOT_WAITS:
                yield Site(path, node.lineno, text)  # type: ignore[attr-defined]


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        name = called.attr if isinstance(called, ast.Attribute) else ""
        return name in NAMES and (not node.value.args or name.startswith("wait_") or name == "record_stream")
    arguments = node.args if isinstance(node, ast.Call) else []
    return any(isinstance(a, ast.Attribute) and a.attr == "wait" for a in arguments)


class _Without(ast.NodeTransformer):
    """Takes the wait out of a module."""

    def __init__(self, line: int) -> None:
        self._line = line

    def visit(self, node: ast.AST) -> ast.AST:
        if getattr(node, "lineno", 0) == self._line:
            if isinstance(node, ast.Expr):
                return ast.copy_location(ast.Pass(), node)
            if isinstance(node, ast.Attribute) and node.attr == "wait":
                return ast.copy_location(ast.parse("lambda: None", mode="eval").body, node)
        return self.generic_visit(node)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, line: int) -> None:
        super().__init__(name, path)
        self._line = line

    def get_code(self, name: str) -> CodeType:
        tree = _Without(self._line).visit(ast.parse(self.get_data(self.path)))
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
                    loader = _Loader(name, str(file), self._site.line)
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
        except BaseException:
            code = NOTICED
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
    """Run schedules until one fails."""
    import torch

    from tests.engine.far_memory.lattice import ROWS, check, drawn
    from tests.engine.ranks import RankPool

    torch.set_num_threads(1)
    pool = RankPool(3, timeout=30.0, fork_here=True)
    pool.run(3, "tests.engine.far_memory.cases:run", [])  # before this process computes references
    try:
        for begin in range(0, SCHEDULES, len(ROWS)):
            check(pool, [drawn(seed) for seed in range(begin, begin + len(ROWS))])
    finally:
        pool.close()


def verdict(site: Site) -> str:
    """Return what became of the wait."""
    if noticed(site):
        return "caught"
    reason = EXCUSED.get((site.name, site.text))
    return "survived" if reason is None else f"kept: {reason}"


def main() -> int:
    """Print a line for each wait; return 1 if one survived without an excuse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("word", nargs="?", default="", help="only files whose path contains this")
    word = parser.parse_args().word
    import torch  # once, for all forks

    importlib.import_module("torch.distributed")
    importlib.import_module("torch._dynamo")
    torch.set_num_threads(1)
    if noticed(None):
        raise SystemExit("the schedules fail with every wait in place")
    survived = 0
    for site in sites():
        if word in site.name:
            what = verdict(site)
            survived += what == "survived"
            print(f"{site.name}:{site.line}  {site.text}  {what}", flush=True)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
