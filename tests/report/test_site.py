"""A published site: what it says is wrong of late, which of its pages have pictures, and what is written."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.analysis.synthetic import record, results, trial, write_run
from zbench.record.record import Record
from zbench.report.html.content import report_of
from zbench.report.site.pages import Overview
from zbench.report.site.publish import publish
from zbench.report.site.store import KeptRun, Site

RUNS, LATE = 40, 20


def overview(place: Path, change: int, *others: Record) -> Path:
    """Write a site of 34 runs, the later ones slower by a fifth; the newest has these other results, too."""
    kept = []
    for index in range(RUNS):
        step = (0.1 if index < change else 0.12) * (1 + 0.002 * (index % 3))
        records = [*trial([step] * 3), *(others if index == RUNS - 1 else ())]
        run = results(records, run_ids=(f"202601{index:02}-000000-00000",))
        kept.append(KeptRun.of(run, report_of(run, None)))
    with closing(Site(place)) as site:
        Overview(kept, "").publish(site)
    return place


BAD = [record(axes={"n": 2}, verdict="wrong"), record(axes={"n": 3}, outcome="oom")]


@pytest.mark.parametrize(
    ("change", "others", "says", "configurations"),
    [
        (RUNS - LATE - 1, [], "1 configuration, none worse", 1),
        (RUNS - LATE, [], "1 regressed", 1),
        (RUNS - 6, BAD, "1 incorrect, 1 failed, 1 regressed", 2),
        (RUNS, [record(axes={"n": 2})], "2 configurations, none worse", 2),
    ],
    ids=["long ago", "of late", "all", "nothing"],
)
def test_the_badge_tells_the_newest_run_and_late_regressions(
    tmp_path: Path, change: int, others: list[Record], says: str, configurations: int
) -> None:
    site = overview(tmp_path / "site", change, *others)
    badge = json.loads((site / "badge.json").read_text())
    assert (badge["message"], badge["color"]) == (says, "brightgreen" if "none" in says else "red")
    assert (site / "feed.xml").read_text().count("<entry>") == (change < RUNS)
    facts = dict(re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", (site / "index.html").read_text()))
    figures = [facts[name] for name in ("Runs", "Configurations", "Regressions")]
    assert figures == [str(RUNS), str(configurations), str(int(change < RUNS))]


@pytest.mark.check
def test_the_newest_five_and_tagged_runs_have_pictures(tmp_path: Path) -> None:
    place = tmp_path / "results" / "example"
    runs = [write_run(place / f"202601{day:02}-000000-00000", [record()]) for day in range(1, 9)]
    with closing(Site(tmp_path / "site")) as site:
        for _ in range(2):
            publish(site, runs, {"v1": f"example/{runs[0].name}"}, "", pytest.fail)
            files = [path for path in site.place.rglob("*") if path.is_file() and "lock" not in path.name]
            assert site.written == len(files), "all that it has, and nothing twice"
    pages = sorted((tmp_path / "site" / "runs" / "example").glob("*.html"))
    assert ["<svg" in page.read_text() for page in pages] == [True, False, False, *[True] * 5]
