"""tools/prose.py counts vague words and names, and refuses a page that is too long."""

from pathlib import Path

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The rank that sends what it has.", {"what": 1}),
        ("What does a verdict mean?", {}),
        ("Whoever sends, one of the ranks waits for the others.", {"what": 1, "those": 1}),
        ("The first one, and the newer ones, where both exist.", {"one": 2, "where": 1}),
        ("Refused if the file is missing.", {}),
        ("Those of rank 1,\nas of step 2.", {"those": 1, "as of": 1}),
        ("`what` and `one` are code.\n\n    what, one\n\n| what | one |\n|---|---|\n| what | one |\n", {}),
    ],
)
def test_vague_words_of_a_page_are_counted(text: str, words: dict[str, int]) -> None:
    page = prose.read_page(text)
    assert sum((p.vague_words() for p in page.passages), prose.Counter[str]()) == words


MODULE = '''
"""The one module."""  # what it does


class Shard:
    """Sends where it can."""

    held: int
    """What is held."""

    def found(self, most: int, *, limit: int) -> None:
        self.here, own_part = most, limit
        raise UsageError(f"expected one of {limit}, got those of {most}")


PATTERN = "one[a-z]"
'''


def test_docstrings_comments_messages_and_names_of_a_module_are_counted() -> None:
    module = prose.read_module(MODULE)
    kinds = [(p.line, p.kind, sorted(+p.vague_words())) for p in module.passages]
    assert sorted(kinds) == [
        (2, "text", ["one"]),
        (2, "text", ["what"]),
        (6, "text", ["where"]),
        (9, "text", ["what"]),
        (13, "message", ["those"]),
    ]
    assert sorted(name for _, name in module.vague_names()) == ["found", "held", "here", "most"]
    assert len(module.names) == 9


def test_the_report_has_a_row_for_each_package(capsys: pytest.CaptureFixture[str]) -> None:
    files = [prose.ROOT / "zbench" / "spec" / "load.py", prose.ROOT / "zbench" / "units.py"]
    assert prose.main([str(file) for file in [*files, prose.ROOT / "README.md"]]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["per", "pages", "zbench/spec", "zbench/units", "all"]


def test_each_vague_word_is_listed_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = tmp_path / "module.py"
    module.write_text(MODULE)
    assert prose.main(["--list", str(module)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{module}:13: those: expected one of value, got those of value" in lines
    assert f"{module}:11: name: found" in lines


def test_a_page_has_at_most_150_lines_without_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    lines = "a line\n" * prose.MAX_PAGE_LINES
    page.write_text(f"{lines}```python\n{lines}```\n")
    assert prose.main([str(page)]) == 0
    page.write_text(f"{lines}a last line\n")
    assert prose.main([str(page)]) == 1
    assert f"{page}: 151 lines without code" in capsys.readouterr().out
