"""tools/prose.py counts vague words and names, and refuses a page that is too long."""

from pathlib import Path

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The rank that sends what it has.", {"what": 1}),
        ("What does a verdict mean?", {}),
        ("The first one, and the newer ones, where both exist.", {"one": 2, "where": 1}),
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
