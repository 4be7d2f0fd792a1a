"""The page of limits is printed from the table, and the table has all limits of verdicts."""

import ast
from collections.abc import Iterator
from pathlib import Path

from zbench.verify.limits import markdown

ROOT = Path(__file__).parents[2]
OF_FLOAT32 = {"(SMALLEST, TINY)", "_SMALLEST", "_LONG_AGO"}


def test_the_page_has_the_table() -> None:
    assert markdown() in (ROOT / "docs/limits.md").read_text()


def constants(path: Path) -> Iterator[str]:
    """Yield the names of a module's constants that are no whole numbers."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            numbers = (n.value for n in ast.walk(statement.value) if isinstance(n, ast.Constant))
            if any(isinstance(number, float) for number in numbers):
                yield from (ast.unparse(target) for target in targets)


def test_no_limit_is_outside_of_the_table() -> None:
    modules = [path for path in (ROOT / "zbench/verify").glob("*.py") if path.name != "limits.py"]
    modules += [ROOT / "zbench/worker/observer.py", ROOT / "zbench/worker/state.py"]
    assert {name for path in modules for name in constants(path)} <= OF_FLOAT32
