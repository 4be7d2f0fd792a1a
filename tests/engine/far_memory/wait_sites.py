"""The waits in the engine's source, and how one is taken out of, or counted in, this process's functions."""

import ast
import gc
import types
from collections import Counter
from collections.abc import Callable, Iterator
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
    """Have this process's functions, and those of its forks, leave out one wait."""
    _rewrite(site.path, [site], _without)


def count(all_sites: list[Site], note: Callable[[str], None]) -> None:
    """Have `note(key)` called with each wait, before it waits; also one that is handed on."""
    by_path: dict[Path, list[Site]] = {}
    for site in all_sites:
        by_path.setdefault(site.path, []).append(site)
    for path, of_path in by_path.items():
        for module_globals in _rewrite(path, of_path, _noted):
            module_globals[_NOTE] = note


_NOTE = "_note_a_wait"


def _without(site: Site, wait: ast.expr) -> ast.expr:
    """Return what does nothing, and names what the wait names: the function keeps its free variables."""
    nothing = "None" if isinstance(wait, ast.Call) else "(lambda: None)"
    return ast.parse(f"(lambda: {ast.unparse(wait)}) and {nothing}", mode="eval").body


def _noted(site: Site, wait: ast.expr) -> ast.expr:
    noted = ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(site.key)], [])
    return ast.Subscript(ast.Tuple([noted, wait], ast.Load()), ast.Constant(1), ast.Load())


def _waits(node: ast.AST) -> Iterator[ast.expr]:
    """Yield a call if it waits, and those of its arguments that are waits."""
    if isinstance(node, ast.Call):
        yield from (a for a in node.args if isinstance(a, ast.Attribute) and a.attr == "wait")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in NAMES and bool(node.args) == (name in WITH_ARGUMENTS):
            yield node


class _Replaced(ast.NodeTransformer):
    """Replaces the waits at some places of a module."""

    def __init__(self, of: list[Site], new: Callable[[Site, ast.expr], ast.expr]) -> None:
        self._of, self._new = {(s.line, s.column, s.text): s for s in of}, new
        self.replaced = 0

    def visit(self, node: ast.AST) -> ast.AST:
        place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        text = ast.unparse(node) if isinstance(node, (ast.Call, ast.Attribute)) else ""
        node = self.generic_visit(node)
        site = self._of.get((*place, text))
        if site is None or not isinstance(node, ast.expr):
            return node
        self.replaced += 1
        return ast.fix_missing_locations(ast.copy_location(self._new(site, node), node))


def _rewrite(
    path: Path, of: list[Site], new: Callable[[Site, ast.expr], ast.expr]
) -> list[dict[str, object]]:
    """Give the functions of a module other code; return the globals of those that got it.

    No closure of the module may exist yet; the module must have been imported.
    """
    replacing = _Replaced(of, new)
    tree = ast.fix_missing_locations(replacing.visit(ast.parse(path.read_text())))
    assert replacing.replaced == len(of), f"{path}: {replacing.replaced} of {len(of)} waits replaced"
    before = dict(_codes(compile(path.read_text(), str(path), "exec")))
    changed = {key: code for key, code in _codes(compile(tree, str(path), "exec")) if before.get(key) != code}
    at = [f for f in functions().get(str(path), ()) if _key(f.__code__) in changed]
    assert at, f"{path}: none of its functions was found in this process"
    for function in at:
        function.__code__ = changed[_key(function.__code__)]
    return [function.__globals__ for function in at]


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
