"""The waits in the engine's source, and how one is taken out of this process's functions."""

import ast
import gc
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "zbench" / "engine"
NAMES = {
    *("wait", "release", "settle", "collect", "_arrive", "_let_go", "_collect"),
    *("synchronize", "wait_stream", "wait_event", "record_stream"),
    *("_complete_down_to", "_reuse_scratch"),
}
WITH_ARGUMENTS = {"wait_stream", "wait_event", "record_stream", "_complete_down_to", "_reuse_scratch"}


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


def remove(site: Site) -> None:
    """Have this process's functions, and those of its forks, leave out one wait.

    No closure of the module may exist yet; the module must have been imported.
    """
    removed, source = _Removed(site), site.path.read_text()
    tree = ast.fix_missing_locations(removed.visit(ast.parse(source)))
    assert removed.done, f"{site.key} is not where it was"
    before = dict(_codes(compile(source, str(site.path), "exec")))
    after = _codes(compile(tree, str(site.path), "exec"))
    changed = {key: code for key, code in after if before.get(key) != code}
    functions_there = [f for f in functions().get(str(site.path), ()) if _key(f.__code__) in changed]
    assert functions_there, f"{site.path}: none of its functions was found in this process"
    for function in functions_there:
        function.__code__ = changed[_key(function.__code__)]


def _without(wait: ast.expr) -> ast.expr:
    """Return what does nothing, and names what the wait names: the function keeps its free variables."""
    nothing = "None" if isinstance(wait, ast.Call) else "(lambda: None)"
    return ast.parse(f"(lambda: {ast.unparse(wait)}) and {nothing}", mode="eval").body


def _waits(node: ast.AST) -> Iterator[ast.expr]:
    """Yield a call if it waits, and those of its arguments that are waits."""
    if isinstance(node, ast.Call):
        yield from (a for a in node.args if isinstance(a, ast.Attribute) and a.attr == "wait")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in NAMES and bool(node.args) == (name in WITH_ARGUMENTS):
            yield node


class _Removed(ast.NodeTransformer):
    """Leaves out the wait at one place of a module."""

    def __init__(self, site: Site) -> None:
        self._place, self.done = (site.line, site.column, site.text), False

    def visit(self, node: ast.AST) -> ast.AST:
        place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        text = ast.unparse(node) if isinstance(node, (ast.Call, ast.Attribute)) else ""
        node = self.generic_visit(node)
        if (*place, text) != self._place or not isinstance(node, ast.expr):
            return node
        self.done = True
        return ast.fix_missing_locations(ast.copy_location(_without(node), node))


@cache
def functions() -> dict[str, list[types.FunctionType]]:
    """Return the functions of the engine that this process has, by the file of their source."""
    found: dict[str, list[types.FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is types.FunctionType and one.__code__.co_filename.startswith(str(ENGINE)):
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno  # type: ignore[attr-defined, unused-ignore] # from Python 3.11


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Yield the functions of a module that are not in a function."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield _key(constant), constant
            yield from _codes(constant)
