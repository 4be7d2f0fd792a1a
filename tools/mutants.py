"""The faults that a source file can have, and the import of a file with one of them."""

import ast
import importlib.abc
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the `index`-th place of a file that can be changed. `line` is the source line, stripped.

    occurrence: how many faults before it in the file have the same line and change.
    """

    path: str
    number: int
    line: str
    change: str
    index: int
    occurrence: int

    @property
    def key(self) -> str:
        """What names this fault in the list of equivalent ones, whatever its line number."""
        return f"{self.path}:{self.line} -> {self.change}"

    @property
    def place(self) -> str:
        """What names this fault in a file of outcomes: among equal lines, the how many-th."""
        return f"{self.key} #{self.occurrence}"


class _Changer(ast.NodeTransformer):
    """Visits every place that can be changed; changes the one with index `target`."""

    def __init__(self, target: int | None = None) -> None:
        self.target = target
        self.places = list[tuple[int, str]]()

    def _here(self, node: ast.expr | ast.stmt, change: str) -> bool:
        self.places.append((node.lineno, change))
        return len(self.places) - 1 == self.target

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for place, op in enumerate(node.ops):
            other = COMPARISONS[type(op)]
            if self._here(node, f"{type(op).__name__} to {other.__name__}"):
                node.ops[place] = other()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = ARITHMETIC.get(type(node.op))
        if other and self._here(node, f"{type(node.op).__name__} to {other.__name__}"):
            node.op = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        if self._here(node, f"{type(node.op).__name__} to {other.__name__}"):
            node.op = other()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._here(node, "Not removed"):
            return node.operand
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            if self._here(node, f"{value} to {not value}"):
                return ast.copy_location(ast.Constant(not value), node)
        elif isinstance(value, int | float) and self._here(node, f"{value} to {value + 1}"):
            return ast.copy_location(ast.Constant(value + 1), node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:  # annotations decide nothing at run time
            node.value = self.visit(node.value)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg == "strict" else self.generic_visit(node)  # zip's is an assertion

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return node
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]  # not `@dataclass(frozen=True)`
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every fault that a file can have, in order of its places."""
    source = path.read_text()
    changer = _Changer()
    lines = source.splitlines()
    equal = Counter[tuple[str, str]]()
    changer.visit(ast.parse(source))
    for index, (number, change) in enumerate(changer.places):
        name = str(path.relative_to(ROOT))
        line = lines[number - 1].strip()
        yield Mutant(name, number, line, change, index, equal[line, change])
        equal[line, change] += 1


def mutated(path: str, index: int) -> ast.Module:
    """Return the syntax tree of a file with one fault."""
    tree = _Changer(index).visit(ast.parse((ROOT / path).read_text()))
    return ast.fix_missing_locations(tree)


def install(path: str, index: int) -> None:
    """Have this process import a file with one fault."""
    sys.meta_path.insert(0, _Finder(path, index))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutated syntax tree, every other one as usual."""

    def __init__(self, path: str, index: int) -> None:
        parts = Path(path).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._is_package = parts[-1] == "__init__"
        self._path = ROOT / path
        self._tree = mutated(path, index)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname != self.name:
            return None
        places = [str(self._path.parent)] if self._is_package else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=places
        )

    def exec_module(self, module: object) -> None:
        exec(compile(self._tree, str(self._path), "exec"), vars(module))
