"""The page stands alone, can be read without seeing it, and shows text from files as text."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.analysis.synthetic import record, results
from tests.keeping import check, drawn
from zbench import __version__
from zbench.analysis.trials import RunResults
from zbench.errors import UsageError
from zbench.record.documents import sealed
from zbench.record.record import Disturbance
from zbench.report.html.content import importance_in, report_of
from zbench.report.html.page import render

from .samples import HOSTILE, full, hostile, pictures

KEPT = Path(__file__).parents[1] / "kept"


class Outline(HTMLParser):
    """Collects elements with their attributes and the text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, {key: value or "" for key, value in attributes}))
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name, "elements are closed in the order in which they were opened"

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data))

    def all(self, name: str) -> list[dict[str, str]]:
        return [attributes for element, attributes in self.elements if element == name]


@pytest.fixture(scope="module")
def page() -> Outline:
    return Outline(render(full()))


def test_the_page_repeats_every_warning_of_the_terminal() -> None:
    text = "the machine was loaded: other processes took 30% of the CPU time"
    loaded = [replace(record(repeat=n), disturbance=Disturbance(load=0.3)) for n in range(2)]
    assert f"{text} (1 configuration)" in render(report_of(results(loaded)))
    assert "Warnings" not in render(report_of(results([record()])))


def test_it_is_well_formed_and_says_its_language(page: Outline) -> None:
    assert not page.open
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")


@pytest.mark.parametrize("make", [full, hostile])
def test_it_loads_and_runs_nothing(make: type) -> None:
    outline = Outline(render(make()))
    names = Counter(name for name, _ in outline.elements)
    assert not names.keys() & {"script", "img", "link", "iframe", "object", "embed", "a", "form", "image"}
    for _, attributes in outline.elements:
        assert not any(key.startswith("on") for key in attributes)
        assert not {"src", "href", "srcset"} & attributes.keys()
        assert attributes.get("xlink:href", "#").startswith("#"), "marks of the picture itself"
    policy = [
        meta["content"] for meta in outline.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    styles = "".join(text for name, text in outline.texts if name == "style")
    assert "url(" not in styles
    assert "@import" not in styles


def test_hostile_text_is_shown_as_it_is() -> None:
    outline = Outline(render(hostile()))
    shown = [text for _, text in outline.texts]
    assert f"★ {HOSTILE}={HOSTILE}" in shown
    assert any(text.startswith("crashed: ") and HOSTILE in text for text in shown)


def test_every_picture_has_a_name_a_description_and_its_figures(page: Outline) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    shown = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(shown) == 2 * 5, "each for wide and for narrow screens"
    for picture in shown:
        assert set(picture["aria-labelledby"].split()) <= set(ids)
    assert len(page.all("details")) == 2
    assert all(attributes.get("aria-labelledby") in ids for attributes in page.all("section")[:5])


def test_a_page_of_many_configurations_stays_small() -> None:
    page = render(full(120))
    assert len(page.encode()) < 1_000_000
    assert "The first 40 of 120 configurations are drawn." in page


def test_tables_have_captions_and_headers(page: Outline) -> None:
    tables = len(page.all("table"))
    assert tables == len(page.all("caption")) == 4
    assert all(header.get("scope") == "col" for header in page.all("th"))
    assert all(region.get("tabindex") == "0" for region in page.all("div") if region.get("class") == "scroll")


def test_nothing_measured_still_makes_a_page() -> None:
    report = full()
    failed = [record for summary in report.summaries for record in summary.records if record.outcome != "ok"]
    outline = Outline(render(report_of(RunResults.of(report.source, failed))))
    assert not [attributes for attributes in outline.all("svg") if attributes.get("role") == "img"]
    assert "none is both correct and within the constraints" in " ".join(text for _, text in outline.texts)


FINDINGS = sealed({"schema_version": 1, "importance": {"zero_stage": 0.75}})


def test_what_a_search_found_is_taken_from_beside_the_records(tmp_path: Path) -> None:
    assert importance_in(tmp_path) == {}
    (tmp_path / "search.json").write_bytes(FINDINGS)
    assert importance_in(tmp_path) == {"zero_stage": 0.75}


@pytest.mark.parametrize(
    "data",
    [b"", FINDINGS.replace(b"0.75", b"0.76")],
)
def test_a_damaged_search_is_named_with_the_remedy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "search.json").write_bytes(data)
    with pytest.raises(UsageError, match="remove it to report without the search"):
        importance_in(tmp_path)


PICTURES = pictures(full())


@pytest.mark.parametrize("name", PICTURES)
def test_marks_are_those_that_are_kept(name: str) -> None:
    picture = PICTURES[name]
    head = f"{picture.title}\n{picture.description}\n{picture.height} {picture.legend}"
    check(
        KEPT / f"{name}.txt",
        f"{head}\n{drawn(picture, narrow=False)}\n\nnarrow\n{drawn(picture, narrow=True)}",
    )


def test_the_page_says_what_is_kept() -> None:
    page = re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", render(full()), flags=re.DOTALL)
    check(KEPT / "page.html", page.replace(__version__, "VERSION"))
