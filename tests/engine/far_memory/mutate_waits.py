"""Removes each wait of the engine in turn and runs far-memory schedules: each removal must make one fail.

    python -m tests.engine.far_memory.mutate_waits             # every wait; some twenty minutes on two cores
    python -m tests.engine.far_memory.mutate_waits masters     # those in files whose path contains the word

The working tree is not touched: an import hook removes the statement in the test processes. A wait that no
schedule misses is listed as `survived` unless EXCUSED says why none can, and ends the run with exit code 1.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
ONLY_A_DEVICE = "only a GPU runs it: a copy's event, or the order of two streams"
EXCUSED: dict[tuple[str, str], str] = {}

HOOK = """
import ast, importlib.machinery, importlib.util, os, sys
root, module, line = os.environ["ZBENCH_MUTATE"].split(",")

class Without(ast.NodeTransformer):
    def visit(self, node):
        if getattr(node, "lineno", 0) == int(line):
            if isinstance(node, ast.Expr):
                return ast.copy_location(ast.parse("None").body[0], node)
            if isinstance(node, ast.Attribute) and node.attr == "wait":
                return ast.copy_location(ast.parse("lambda: None", mode="eval").body, node)
        return self.generic_visit(node)

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        tree = ast.parse(self.get_data(self.path))
        return compile(ast.fix_missing_locations(Without().visit(tree)), self.path, "exec")

class Finder:
    def find_spec(name, *_):
        kind = Loader if name == module else importlib.machinery.SourceFileLoader
        base = os.path.join(root, *name.split("."))
        for path, folder in ((base + ".py", None), (os.path.join(base, "__init__.py"), [base])):
            if name.split(".")[0] == "zbench" and os.path.exists(path):
                loader = kind(name, path)
                return importlib.util.spec_from_file_location(
                    name, path, loader=loader, submodule_search_locations=folder)

sys.meta_path.insert(0, Finder)
"""


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


def noticed(site: Site) -> bool:
    """Whether a schedule fails without this wait; a hang counts."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(HOOK)
        environment = {
            **os.environ,
            "ZBENCH_MUTATE": f"{ROOT},{site.module},{site.line}",
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT)]),
        }
        command = [sys.executable, "-m", "tests.engine.far_memory.mutate_waits", "--schedules"]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=600)
        except subprocess.TimeoutExpired:
            return True
    if done.returncode not in (0, NOTICED):
        raise RuntimeError(f"{site}: ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return done.returncode == NOTICED


def run_schedules() -> int:
    """Run schedules until one fails."""
    import torch

    from tests.engine.far_memory.lattice import ROWS, check, drawn
    from tests.engine.ranks import RankPool

    torch.set_num_threads(1)
    pool = RankPool(3, timeout=60.0)
    try:
        for begin in range(0, SCHEDULES, len(ROWS)):
            check(pool, [drawn(seed) for seed in range(begin, begin + len(ROWS))])
    except Exception:
        return NOTICED
    finally:
        pool.close()
    return 0


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
    parser.add_argument("--schedules", action="store_true", help="run the schedules on the engine as it is")
    arguments = parser.parse_args()
    if arguments.schedules:
        return run_schedules()
    survived = 0
    for site in sites():
        if arguments.word in site.name:
            what = verdict(site)
            survived += what == "survived"
            print(f"{site.name}:{site.line}  {site.text}  {what}", flush=True)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
