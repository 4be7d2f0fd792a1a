"""The rules of tools/prose.py, to which `make lint` holds every page and docstring."""

from pathlib import Path

import pytest

from tools import prose

WORDS = " ".join(["word"] * prose.MOST_WORDS)


@pytest.mark.parametrize(
    ("text", "sentences", "long_sentences"),
    [
        (f"{WORDS}.", 1, 0),
        (f"{WORDS} more.", 1, 1),
        (f"{WORDS}. zbench begins another one: As does a capital. {WORDS}", 4, 0),
        (f"{WORDS[5:]} `code of many words is one`.", 1, 0),
        (f"- {WORDS},\n  and a line goes on.\n- {WORDS}\n", 2, 1),
        (f"A word, e.g. this one; {WORDS}", 1, 1),
        (f"# {WORDS} more\n\n    {WORDS} more\n\n| {WORDS} more |\n| --- |\n| {WORDS} more |\n", 0, 0),
    ],
)
def test_a_sentence_of_more_than_30_words_is_reported(text: str, sentences: int, long_sentences: int) -> None:
    page = prose.read(text)
    assert (page.sentences, len(page.long_sentences), page.faults) == (sentences, long_sentences, [])


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("At 1.5, 2 %, 3 ms and 4 GiB, 5,000 times.", 5),
        ("At 1.5, 2 %, 3 ms and 4 GiB, at stage 3 of ZeRO-2, `5,000` times in float32.", None),
        ("1, 2, 3 and 4.\n\nThen 5.", None),
    ],
)
def test_a_paragraph_of_more_than_4_figures_is_reported(text: str, figures: int | None) -> None:
    faults = [fault.split(" figures")[0] for _, fault in prose.read(text).faults]
    assert faults == ([] if figures is None else [str(figures)])


def test_lines_of_code_do_not_make_a_page_long() -> None:
    lines = "a line\n" * prose.MOST_LINES
    assert not prose.read(f"{lines}```python\n{lines}```\n").faults
    assert [fault for _, fault in prose.read(f"{lines}one more\n").faults] == ["151 lines without code"]


def test_one_long_sentence_in_a_hundred_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{WORDS} more. " + "A short one. " * 99)
    assert prose.main([str(page)]) == 0
    page.write_text(f"{WORDS} more. " + "A short one. " * 98)
    assert prose.main([str(page)]) == 1
    assert "page.md:1: 31 words: word word" in capsys.readouterr().out


def test_a_long_sentence_of_a_docstring_is_reported(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'"""Short."""\n\n\ndef call():\n    """Short.\n\n    {WORDS} more.\n    """\n')
    (place,) = prose.prose_of(module).long_sentences
    assert place == (7, "31 words: word word word word word word word word word word word word ...")
