"""Every format says the same, is valid in its own syntax, and shows text from files as text."""

import csv
import io
import json
import os
import resource
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic import record, results, trial
from tests.report.html.samples import full
from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.settings import Settings
from zbench.errors import UsageError
from zbench.record.record import Record
from zbench.report import exports
from zbench.report.exports import csv as csv_format
from zbench.report.exports import document, junit, markdown, texts

EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]
HOSTILE = "<script>alert(1)</script>|`x`\n[a](http://e.example)@all ]]>&\x1b[31m\x00=1+1"


def comparison(**settings: Any) -> Comparison:
    """Stage 0 passes, 1 is slower, 2 is wrong, 3 crashed, 4 is undecided, 5 is missing, 6 is new."""
    stages: dict[int, list[Record]] = {
        0: trial(EVEN, axes={"zero_stage": 0}, peak=900_000),
        1: trial([1.3 * step for step in EVEN], axes={"zero_stage": 1}),
        2: trial(EVEN, axes={"zero_stage": 2}, verdict="wrong"),
        3: [record(axes={"zero_stage": 3}, outcome="crashed")],
        4: trial([1.04 * step for step in EVEN], axes={"zero_stage": 4}),
        6: trial(EVEN, axes={"zero_stage": 6}),
    }
    base = [item for stage in range(6) for item in trial(EVEN, axes={"zero_stage": stage})]
    head = [item for group in stages.values() for item in group]
    return compare_runs(results(base), results(head, "head"), Settings(**settings))


def hostile() -> Comparison:
    """Text from files tries to be markup: in names, axes and failure messages."""
    axes = {HOSTILE: HOSTILE, "=cmd": "=1+1"}
    failed = record(axes=axes, outcome="crashed")
    assert failed.error is not None
    failed = replace(failed, trial_id=HOSTILE, error=replace(failed.error, message=HOSTILE))
    base = replace(record(axes=axes), trial_id=HOSTILE)
    return compare_runs(results([base], HOSTILE), results([failed], HOSTILE), Settings())


def test_json_of_a_single_process_has_no_infinite_bounds() -> None:
    content = document.document(compare_runs(results(trial([0.1])), results(trial([0.1])), Settings()))
    assert content["trials"][0]["step_time"]["low"] is None
    assert "2 are needed" not in json.dumps(content, allow_nan=False)


@pytest.mark.parametrize(("count", "told"), [(200, []), (201, ["Not listed: 1 further configuration."])])
def test_markdown_lists_200_configurations_at_most(count: int, told: list[str]) -> None:
    base = comparison()
    lines = markdown.render(replace(base, rows=base.rows[:1] * count)).splitlines()
    assert sum(line.startswith("| zero") for line in lines) == 200
    assert [line for line in lines if "further" in line] == told


def test_markdown_shows_hostile_text_as_text() -> None:
    text = markdown.render(hostile())
    assert "<script" not in text
    assert "@all" not in text
    assert "[a](http" not in text
    assert "\x1b" not in text
    row = next(line for line in text.splitlines() if "failed" in line and line.startswith("|"))
    assert row.replace("\\|", "").count("|") == len(texts.table(hostile()).columns) + 1


@pytest.mark.parametrize(
    ("trial_id", "cell"),
    [
        *((f"{start}1+1", f"'{start}1+1") for start in "=+-@"),
        ("1=1", "1=1"),
        ("\r=1\n2\t3", "\\r=1\\n2\\t3"),
    ],
)
def test_no_spreadsheet_computes_a_cell_of_csv(trial_id: str, cell: str) -> None:
    run = results([replace(record(), trial_id=trial_id)])
    row = next(csv.DictReader(io.StringIO(csv_format.render(compare_runs(run, run, Settings())))))
    assert row["trial_id"] == cell
    assert row["answer"] == "inconclusive"


def test_junit_survives_hostile_text() -> None:
    suite = ET.fromstring(junit.render(hostile()))
    assert "<script>alert(1)</script>" in suite.findall("testcase")[0].attrib["name"]


def test_every_format_is_written(tmp_path: Any) -> None:
    paths = exports.write(exports.files(comparison()), tmp_path / "new" / "place")
    assert {path.name for path in paths} == {
        "compare.md", "compare.json", "compare.csv", "compare.junit.xml",
    }  # fmt: skip
    assert all(path.read_text().endswith("\n") for path in paths)
    assert paths[0].read_text().startswith(markdown.MARKER)


def test_the_best_is_bold_and_every_row_has_all_cells() -> None:
    report = full()
    lines = markdown.render_run(report).splitlines()
    headings, rule, *rows = lines[: 2 + len(report.summaries)]
    assert headings.startswith("| configuration | trial | tokens/s |")
    assert {line.count("|") for line in (headings, rule, *rows)} == {headings.count("|")}
    assert [row.startswith("| **") for row in rows].count(True) == 1
    assert lines[len(rows) + 2] == ""
    assert any(line.startswith(("- \\* best", "- ≈\\* recommended")) for line in lines), lines
    assert lines[-1].startswith("Run r1; ")


def test_a_full_disk_keeps_the_earlier_file_whole(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk: the write is cut short."""
    exports.write({"page.html": "the page of before"}, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UsageError, match="cannot write into"):
            exports.write({"page.html": "a longer page" * 1000}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the page of before"]


def test_links_and_pipes_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("page.html")
    (tmp_path / "page.html").touch()
    os.mkfifo(tmp_path / "pipe.html")
    reader = os.open(tmp_path / "pipe.html", os.O_RDONLY | os.O_NONBLOCK)
    exports.write({"link.html": "1", "pipe.html": "2"}, tmp_path)
    assert (tmp_path / "page.html").read_text() == "1"
    assert os.read(reader, 10) == b"2"
    os.close(reader)
