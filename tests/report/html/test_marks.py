"""Every mark of every picture lies where it did, with its text: a change shows in tests/report/kept."""

import re

import pytest

from tests.report.keeping import check, drawn
from zbench import __version__
from zbench.report.html import content
from zbench.report.html.page import render

from .samples import full

PICTURES = content.pictures(full())


@pytest.mark.parametrize("name", PICTURES)
def test_marks_are_those_that_are_kept(name: str) -> None:
    picture = PICTURES[name]
    head = f"{picture.title}\n{picture.description}\n{picture.height} {picture.legend}"
    check(f"{name}.txt", f"{head}\n{drawn(picture, narrow=False)}\n\nnarrow\n{drawn(picture, narrow=True)}")


def test_the_page_says_what_is_kept() -> None:
    page = re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", render(full()), flags=re.DOTALL)
    check("page.html", page.replace(__version__, "VERSION"))
