"""Each claim of a page names a test that exists, and a word of the claim that the test contains.

A reference is the name of a test and a word: `test_a_lock_is_its_owners_alone`: `0o600`. The word is in the
source of the test, of its fixtures, or of the definitions in `tests` that they use.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("tests/**/*.py"))
TESTS = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
REFERENCE = re.compile(r"`(test_\w+)`(?::\s+`([^`]+)`)?")
OTHER_PROGRAMS = "opened by"
"""Begins the last cell of a socket of another program, which no test of zbench shows."""

Place = tuple[str, str]
"""The module and the name of a definition; the name is empty for a whole module."""


@cache
def definitions(module: str) -> dict[str, str]:
    """Return the source of each statement of a module by the names that it defines."""
    source = TESTS[module].read_text(encoding="utf-8")
    lines = source.splitlines()
    sources: dict[str, str] = {}
    for node in ast.parse(source).body:
        decorators = getattr(node, "decorator_list", [])
        text = "\n".join(lines[min(n.lineno for n in [node, *decorators]) - 1 : node.end_lineno])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            sources[node.name] = text
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
            sources |= {name.id: text for name in names if isinstance(name.ctx, ast.Store)}
    return sources


@cache
def imports(module: str) -> dict[str, Place]:
    """Return the definitions and modules of `tests` that a module imports, by their names in the module."""
    names: dict[str, Place] = {}
    for node in ast.walk(ast.parse(TESTS[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                names[alias.asname or alias.name] = (inner, "") if inner in TESTS else (origin, alias.name)
    return {name: place for name, place in names.items() if place[0] in TESTS}


def used(module: str, source: str) -> Iterator[Place]:
    """Yield the definitions of `tests` that a piece of source names: own, imported, fixtures, targets."""
    folders = module.split(".")[:-1]
    conftests = [".".join([*folders[:depth], "conftest"]) for depth in range(1, len(folders) + 1)]
    for name in set(re.findall(r"\w+", source)):
        if name in definitions(module):
            yield module, name
        elif name in imports(module):
            origin, inner = imports(module)[name]
            inners = [inner] if inner else re.findall(rf"\b{name}\.(\w+)", source)
            yield from ((origin, inner) for inner in inners)
        else:
            yield from ((conftest, name) for conftest in conftests if conftest in TESTS)
    yield from re.findall(r"\"(tests[\w.]+):(\w+)\"", source)


@cache
def whole_source(module: str, test: str) -> str:
    """Return the source of a test with everything in `tests` that it uses."""
    sources: dict[Place, str] = {}
    pending = [(module, test)]
    while pending:
        place = pending.pop()
        if place not in sources and place[1] in definitions(place[0]):
            sources[place] = definitions(place[0])[place[1]]
            pending += used(place[0], sources[place])
    return "\n".join(sources.values())


def problem_of(test: str, word: str) -> str | None:
    """Return why a reference shows nothing; None if the test exists and contains the word."""
    modules = [module for module in TESTS if test in definitions(module)]
    if len(modules) != 1:
        return f"{test} is in {len(modules)} files"
    if not word:
        return f"{test}: no word of the claim is given"
    word = " ".join(word.split())  # a page may break its line there
    source = whole_source(modules[0], test).replace(test, "")  # a word of its name shows nothing
    return None if word in source else f"{test} does not contain {word!r}"


def section(page: str, title: str) -> str:
    """Return the text of a page from a title to the next title."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"\n## {title}\n" in text, f"{page} has no section {title}"
    return re.split(r"^## ", text.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def claims(text: str) -> list[str]:
    """Return each item of a list and each row of a table, without the rows of titles."""
    items = re.findall(r"^- .*(?:\n  .*)*", text, flags=re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return items + [row for table in tables for row in table.splitlines()[2:]]


PAGES = ["SECURITY.md", "docs/faults.md", "CONTRIBUTING.md"]
SECTIONS = [
    ("SECURITY.md", "What is not trusted", 15),
    ("SECURITY.md", "Sockets that are opened", 8),
    ("SECURITY.md", "Results and secrets", 8),
    ("docs/faults.md", "What holds after each fault", 4),
    ("docs/faults.md", "Faults and outcomes", 25),
    ("docs/faults.md", "Fuzzing", 6),
    ("CONTRIBUTING.md", "Promises and their tests", 8),
]


@pytest.mark.parametrize("page", PAGES)
def test_a_named_test_contains_the_word_of_the_claim(page: str) -> None:
    references = REFERENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(references) >= 8
    assert [problem for reference in references if (problem := problem_of(*reference))] == []


@pytest.mark.parametrize(("page", "title", "least"), SECTIONS)
def test_every_claim_names_a_test(page: str, title: str, least: int) -> None:
    texts = claims(section(page, title))
    assert len(texts) >= least
    without = [text for text in texts if not REFERENCE.search(text) and OTHER_PROGRAMS not in text]
    assert without == []
