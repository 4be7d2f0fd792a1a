"""A published site in a real browser: readable without the script, filtered and sorted with it."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.analysis.synthetic import record, trial, write_run
from zbench.report.site.publish import publish
from zbench.report.site.store import Site

from .samples import HOSTILE
from .test_browser import BROWSER, Keyboard, browse, measured

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")

RUNS, CHANGE = 16, 8
WIDTHS = (390, 820, 1920)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("published")
    runs = []
    for index in range(RUNS):
        step = (0.1 if index < CHANGE else 0.12) * (1 + 0.004 * (index % 3))
        records = [*trial([step, 1.02 * step]), *trial([0.2 + index / 1000], axes={"zero_stage": 2})]
        about = {"git": {"commit": f"{index:040x}", "dirty": False}, "branch": "main"}
        runs.append(
            write_run(home / "results" / "example" / f"202601{index + 1:02}-000000-00000", records, **about)
        )
    with closing(Site(home / "site")) as opened:
        publish(opened, runs, {"v1": f"example/{runs[0].name}"}, "https://example.org/commit/", print)
    return home / "site"


def trend_of(site: Path, name: str) -> Path:
    return next(page for page in (site / "trends").iterdir() if f"<h1>{name}</h1>" in page.read_text())


@pytest.mark.check
@pytest.mark.parametrize("page", ["index", "trend", "run"])
def test_pages_fit_every_screen_and_no_text_covers_another(site: Path, tmp_path: Path, page: str) -> None:
    file = {"index": site / "index.html", "trend": trend_of(site, "zero_stage=1"),
            "run": max((site / "runs" / "example").glob("*.html"))}[page]  # fmt: skip
    for width, view in measured(tmp_path, file.read_text(), WIDTHS).items():
        assert view["needed"] == width, "nothing makes the page itself scroll sideways"
        assert view["verdict"], "a verdict is seen without scrolling"
        assert (view["outside"], view["overlapping"]) == ([], [])
        assert view["loaded"] == 0
        assert (int(str(view["shown"])) > 5) == (page != "index")


@pytest.mark.check
def test_the_script_runs_under_the_pages_own_policy(site: Path, tmp_path: Path) -> None:
    dom = browse(tmp_path, "--dump-dom", (site / "index.html").as_uri())
    assert '<button type="button">throughput</button>' in dom
    assert '<p class="filter">' in dom
    script = re.search(r"<script>(.*?)</script>", (site / "index.html").read_text(), re.DOTALL)
    assert script is not None
    assert len(script[1].splitlines()) <= 100
    assert "<script" not in trend_of(site, "zero_stage=1").read_text()


ROWS = """[...document.querySelectorAll('table')].map((table) =>
[...table.tBodies[0].rows].filter((row) => row.getClientRects().length)
.map((row) => row.cells[0].textContent))"""


@pytest.mark.check
def test_rows_are_filtered_sorted_and_opened_by_keys_alone(site: Path, tmp_path: Path) -> None:
    with Keyboard(site / "index.html", tmp_path / "profile") as page:
        page.tab_to("#filter")
        *_, runs = page.value(ROWS)
        assert runs[0].startswith("20260116"), "the newest first"
        page.type("ZERO_STAGE=2 identical")
        assert [len(rows) for rows in page.value(ROWS)] == [0, 1, 0]
        assert page.value("document.querySelector('output').textContent").startswith("1 of ")
        page.value("document.activeElement.select()")
        page.press("Delete", 46)
        page.tab_to("section:last-of-type th button")
        page.enter()
        assert page.value(ROWS)[-1] == runs[::-1]
        assert page.value("document.activeElement.closest('th').ariaSort") == "ascending"
        page.tab_to("td a[href^='runs/']")
        assert page.value("document.activeElement.getAttribute('href')").startswith("runs/example/20260101")


def test_dots_lead_to_runs_and_changes_to_commits(site: Path) -> None:
    text = trend_of(site, "zero_stage=1").read_text()
    dots = re.findall(r'<a [^>]*href="\.\./runs/example/(\d{8})[^"]*">\s*<title>(.*?)</title>', text)
    assert len(dots) == 2 * RUNS, "on wide and on narrow screens"
    assert dots[0][1].startswith("20260101-000000-00000 000000000: 101 ms")
    assert f'href="https://example.org/commit/{CHANGE:040x}"' in text
    assert "+20." in text


@pytest.mark.check
def test_hostile_text_runs_nothing(tmp_path: Path) -> None:
    """Names that files bring are escaped on every page of a site, without the policy's help."""
    about = {"git": {"commit": HOSTILE, "dirty": False}, "branch": HOSTILE, "machine": {"cpu": HOSTILE}}
    item = record(axes={HOSTILE: HOSTILE})
    run = write_run(tmp_path / "results" / 'a "b" <img src=x>' / "20260101-000000-00000", [item], **about)
    with closing(Site(tmp_path / "site")) as opened:
        publish(opened, [run], {}, "https://example.org/commit/", print)
    for page in (tmp_path / "site").rglob("*.html"):
        html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
        (tmp_path / "page.html").write_text(html)
        dom = browse(tmp_path, "--dump-dom", (tmp_path / "page.html").as_uri())
        assert "owned" not in re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1].split("·")[1]  # type: ignore[index]
        assert "<img" not in dom
        assert dom.count("<script") == (page.name == "index.html")
