"""Every mark of every picture lies where it did, with its text: a change shows in tests/report/kept."""

import re
from dataclasses import replace

import pytest
from analysis.synthetic import record, results

from tests.report.keeping import check, drawn
from zbench import __version__
from zbench.report.html import content
from zbench.report.html.content import report_of
from zbench.report.html.page import render

from .samples import full

PICTURES = content.pictures(full())


@pytest.mark.parametrize("name", PICTURES)
def test_marks_are_those_that_are_kept(name: str) -> None:
    picture = PICTURES[name]
    head = f"{picture.title}\n{picture.description}\n{picture.height} {picture.legend}"
    check(f"{name}.txt", f"{head}\n{drawn(picture, narrow=False)}\n\nnarrow\n{drawn(picture, narrow=True)}")


def test_a_category_that_only_the_host_has_is_in_the_legend() -> None:
    found = record()
    assert found.memory is not None
    memory = replace(found.memory, by_category={"parameters": 1000, "host_moments": 500})
    picture = content.pictures(report_of(results([replace(found, memory=memory)])))["memory"]
    assert [name for _, name in picture.legend] == ["parameters", "moments"]


def test_the_page_says_what_is_kept() -> None:
    page = re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", render(full()), flags=re.DOTALL)
    check("page.html", page.replace(__version__, "VERSION"))
