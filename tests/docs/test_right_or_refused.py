"""The page of uses that once went wrong names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "right-or-refused.md"


def test_every_use_has_a_test_that_exists() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 21
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            functions = list(ast.walk(ast.parse((ROOT / file).read_text())))
            assert any(isinstance(f, ast.FunctionDef) and f.name == test for f in functions), (file, test)
