"""`zbench publish` through the command line: what is on the site, what is kept, and what is refused."""

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.analysis.synthetic import record, trial, write_run
from zbench.report.site import publish

RUNS, CHANGE = 16, 8
ATOM = "{http://www.w3.org/2005/Atom}"


def add_run(results: Path, index: int, *, step: float | None = None, **more: object) -> Path:
    seconds = step or (0.1 if index < CHANGE else 0.12) * (1 + 0.002 * (index % 3))
    wrong = [record(axes={"zero_stage": 2}, verdict="wrong" if index == RUNS - 1 else "identical")]
    about = {"branch": "main", "git": {"commit": f"{index:040x}", "dirty": False}, **more}
    run_id = f"202601{index + 1:02}-000000-00000"
    started = f"2026-01-{index + 1:02}T00:00:00+0000"
    return write_run(results / "example" / run_id, [*trial([seconds] * 3), *wrong], started=started, **about)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return results of 16 runs, of which the second half is slower; the newest has its pictures drawn."""
    monkeypatch.setattr(publish, "_DRAWN", 1)
    for index in range(RUNS):
        add_run(tmp_path / "results", index)
    return tmp_path / "results"


def links(page: Path) -> list[str]:
    return re.findall(r'(?:xlink:)?href="([^"]+)"', page.read_text())


def test_a_site_of_all_runs(zbench, out, tmp_path):
    """Every link leads to a file; a change is linked to its commits, a run to its report and comparison."""
    zbench("tag", "last", "v1")
    site = tmp_path / "site"
    code, text, _ = zbench("publish", out, "--to", site, "--commits", "https://example.org/commit/")
    assert (code, text) == (0, f"{site / 'index.html'}\n")
    pages = sorted(site.rglob("*.html"))
    assert len([page for page in pages if page.parent.parent.name == "runs"]) == RUNS
    for page in pages:
        assert page.stat().st_size < 1_000_000
        for link in links(page):
            assert link.startswith(("https://example.org/commit/", "#")) or (page.parent / link).is_file(), (
                link
            )
    index = (site / "index.html").read_text()
    assert "202601" in index
    assert "(v1)" in index
    assert "mean_step_s +20.0 %" in index
    assert f'href="https://example.org/commit/{CHANGE:040x}"' in index
    assert "identical to wrong" in index
    newest = (site / "runs" / "example" / f"202601{RUNS}-000000-00000.html").read_text()
    assert "Change of step time against the baseline" in newest
    assert "<svg" in newest
    oldest = (site / "runs" / "example" / "20260101-000000-00000.html").read_text()
    assert "<svg" not in oldest
    assert "zbench report RUN --html FILE" in oldest


def test_feed_and_badge(zbench, out, tmp_path):
    zbench("publish", "--to", tmp_path / "site")
    feed = ET.parse(tmp_path / "site" / "feed.xml").getroot()
    titles = [entry.findtext(f"{ATOM}title") for entry in feed.iter(f"{ATOM}entry")]
    assert titles == ["zero_stage=2: verdict", "zero_stage=1: mean_step_s +20.0 %"]
    assert feed.findtext(f"{ATOM}updated") == f"2026-01-{RUNS}T00:00:00+00:00"
    badge = json.loads((tmp_path / "site" / "badge.json").read_text())
    assert badge == {
        "schemaVersion": 1,
        "label": "zbench",
        "message": "1 incorrect, 2 regressed",
        "color": "red",
    }


def test_publishing_again_writes_new_runs_and_keeps_removed_runs(zbench, out, tmp_path):
    site = tmp_path / "site"
    assert zbench("publish", "--to", site, "--json").document["runs"] == RUNS
    assert zbench("publish", "--to", site, "--json").document["written"] == 0
    shutil.rmtree(out)
    add_run(tmp_path / "results", RUNS)
    report = site / "runs" / "example" / "20260101-000000-00000.html"
    before = report.stat().st_mtime_ns
    document = zbench("publish", "--to", site, "--json").document
    assert document["runs"] == RUNS + 1
    assert document["written"] < 10
    assert report.stat().st_mtime_ns == before
    assert f"{RUNS + 1} runs" in (site / "index.html").read_text()


def test_a_page_that_was_changed_is_made_again(zbench, out, tmp_path):
    site = tmp_path / "site"
    zbench("publish", "--to", site)
    pages = [site / "runs" / "example" / "20260101-000000-00000.html", site / "feed.xml"]
    before = [page.read_bytes() for page in pages]
    for page in pages:
        page.write_bytes(page.read_bytes().replace(b"example", b"exmaple"))
    zbench("publish", "--to", site)
    assert [page.read_bytes() for page in pages] == before


def test_branches_and_machines_are_apart(zbench, out, tmp_path):
    for index in range(3):
        add_run(out, RUNS + index, branch="topic", step=0.3)
    other = {"cpu": "Other CPU", "cores": 64}
    add_run(out, RUNS + 3, step=0.5, machine=other)
    zbench("publish", "--to", tmp_path / "site")
    index = (tmp_path / "site" / "index.html").read_text()
    assert index.count(">zero_stage=1</a></td>") == 3 + 1, "three series, one of which changed"
    assert index.count("mean_step_s +") == 1, "no change from one branch or machine to another"
    assert "topic" in index
    assert "Other CPU, 64 cores" in index
    first = (tmp_path / "site" / "runs" / "example" / f"202601{RUNS + 1}-000000-00000.html").read_text()
    assert "Change of step time" in first, "a branch's first run is compared with the one that it left"


def test_a_branch_of_results(zbench, refusal, out, tmp_path, monkeypatch):
    monkeypatch.chdir(out)
    for words in (["init", "-q", "-b", "data"], ["add", "example"], ["commit", "-q", "-m", "x"]):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *identity, *words], check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://me:secret@example.org/me/it.git"], check=True)
    shutil.rmtree(out / "example")
    words = ("publish", ".", "--to", tmp_path / "site", "--branch", "data", "--json")
    assert zbench(*words).document["runs"] == RUNS
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="https://example.org/me/it/commit/0' in index
    assert "secret" not in index


def test_nothing_is_lost_on_a_full_disk(zbench, refusal, out, tmp_path, monkeypatch):
    """What was published stays as it was; with room again the rest follows."""
    site = tmp_path / "site"
    zbench("publish", "--to", site)
    before = {path: path.read_bytes() for path in site.rglob("*.html")}
    add_run(out, RUNS)
    sync = os.fsync

    def full(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".partial"):
            os.truncate(descriptor, 100)
            raise OSError(28, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left on device; what was published stays" in refusal("publish", "--to", site)
    assert {path: path.read_bytes() for path in site.rglob("*.html")} == before
    assert not list(site.rglob("*.partial"))
    (site / "runs" / "index.html.0123abcd.partial").touch()  # a killed command's
    assert zbench("publish", "--to", site, "--json").document["runs"] == RUNS + 1
    assert not list(site.rglob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone", "--to", "site"], "no such directory: gone"),
        (["--to", "foreign"], "foreign holds other files than a site's (thesis.tex)"),
        (["--to", "damaged"], "x.json is damaged"),
        (["--to", "results/example/20260101-000000-00000/spec.yaml/x"], "cannot write a site into"),
        (["--to", "site", "--commits", "javascript:alert(1)//"], "--commits: expected an address"),
    ],
)
def test_bad_input(refusal, out, arguments, says):
    (Path("empty")).mkdir()
    for file in ("foreign/thesis.tex", "damaged/.zbench-site", "damaged/runs/example/x.json"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("years")
    assert says in refusal("publish", *arguments)
    assert Path("foreign", "thesis.tex").read_text() == "years"
    assert not Path("site", "index.html").exists()
