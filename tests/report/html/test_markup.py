"""What is not markup by construction is text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.report.html.markup import Markup, join, tag, text


@given(st.text())
def test_text_never_becomes_markup(value: str) -> None:
    shown = tag("p", value, title=value)
    assert shown.count("<") == 2
    assert shown.count(">") == 2
    assert shown.count('"') == 2
    assert "'" not in shown


def test_markup_is_kept_and_text_escaped() -> None:
    assert tag("p", tag("b", "x"), " & <") == "<p><b>x</b> &amp; &lt;</p>"
    assert join("<", Markup("<br>")) == "&lt;<br>"


def test_attributes() -> None:
    assert tag("rect", x=1.0, y=2.345, class_="a", stroke_width=0.5, id=None) == (
        '<rect x="1" y="2.35" class="a" stroke-width="0.5"></rect>'
    )
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\ud800", "\ufffe"])
def test_characters_that_no_document_can_hold_are_replaced(char: str) -> None:
    assert text(f"a{char}b") == "a\N{REPLACEMENT CHARACTER}b"
