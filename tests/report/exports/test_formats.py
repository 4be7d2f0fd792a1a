"""Every format says the same, is valid in its own syntax, and shows text from files as text."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from analysis.synthetic import record, results, trial

from zbench.analysis.compare import Comparison, Settings, compare_runs
from zbench.record.record import Record
from zbench.report import exports
from zbench.report.exports import bmf, document, gha, junit, markdown, table, texts
from zbench.report.exports import csv as csv_format
from zbench.report.screen import Screen

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
    return compare_runs(results(base), results(head, "head"), Settings(**({"run_noise": 0.01} | settings)))


def hostile() -> Comparison:
    """Text from files tries to be markup: in names, axes and failure messages."""
    axes = {HOSTILE: HOSTILE, "=cmd": "=1+1"}
    failed = record(axes=axes, outcome="crashed")
    assert failed.error is not None
    failed = replace(failed, trial_id=HOSTILE, error=replace(failed.error, message=HOSTILE))
    base = replace(record(axes=axes), trial_id=HOSTILE)
    return compare_runs(results([base], HOSTILE), results([failed], HOSTILE), Settings())


def test_json_has_everything() -> None:
    found = document.document(comparison())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [row["answer"] for row in found["trials"]] == [
        "pass",
        "regression",
        "incorrect",
        "failed",
        "inconclusive",
    ]
    assert [trial["axes"] for trial in found["missing"]] == [{"zero_stage": 5}]
    assert [trial["axes"] for trial in found["added"]] == [{"zero_stage": 6}]
    assert found["exit_code"] == 4
    slower = found["trials"][1]["step_time"]
    assert slower["change"] == pytest.approx(0.3)
    assert slower["low"] < slower["change"] < slower["high"]
    peak = found["trials"][0]["exact"][0]
    assert (peak["metric"], peak["answer"], peak["change"]) == (
        "peak_device_bytes",
        "lower",
        pytest.approx(-0.1),
    )


def test_json_of_a_single_process_has_no_infinite_bounds() -> None:
    found = document.document(compare_runs(results(trial([0.1])), results(trial([0.1])), Settings()))
    assert found["trials"][0]["step_time"]["low"] is None
    assert "2 are needed" not in json.dumps(found, allow_nan=False)


def test_table_shows_the_worst_first_with_reasons() -> None:
    text = io.StringIO()
    table.print_comparison(comparison(), Screen(file=text, width=200))
    lines = text.getvalue().splitlines()
    answers = [line.split()[1] for line in lines[2:7]]
    assert answers == ["incorrect", "failed", "regression", "inconclusive", "pass"]
    said = "\n".join(lines[7:])
    assert "zero_stage=2: head is wrong" in said
    assert "zero_stage=3: head ended in crashed: killed by signal 9" in said
    assert "missing in head: zero_stage=5" in said
    assert "5 configurations: 1 incorrect, 1 failed, 1 regression, 1 inconclusive, 1 pass" in said


def test_a_long_table_hides_only_rows_that_pass() -> None:
    many = [item for i in range(100) for item in trial(EVEN, axes={"i": i})]
    found = compare_runs(results(many), results(many, "head"), Settings(run_noise=0.01))
    text, everything = io.StringIO(), io.StringIO()
    table.print_comparison(found, Screen(file=text, width=200))
    table.print_comparison(found, Screen(file=everything, width=200), every_row=True)
    assert "not shown: 40 further configurations with `pass`" in text.getvalue()
    assert everything.getvalue().count("\ni=") == 100
    assert text.getvalue().count("\ni=") == 60
    assert "not shown" not in everything.getvalue()


def test_in_a_terminal_the_answers_alone_are_coloured() -> None:
    text = io.StringIO()
    screen = Screen(file=text, width=200, force_terminal=True, _environ={"TERM": "xterm"})
    table.print_comparison(comparison(), screen)
    rows = [line for line in text.getvalue().splitlines() if line.startswith("zero_stage")][:5]
    coloured = [re.findall(r"\x1b\[[1-9][\d;]*m([^\x1b\s]+)", row) for row in rows]
    assert coloured == [["incorrect"], ["failed"], ["regression"], ["inconclusive"], ["pass"]]


@pytest.mark.parametrize(("count", "told"), [(200, []), (201, ["Not listed: 1 further configuration."])])
def test_markdown_lists_200_configurations_at_most(count: int, told: list[str]) -> None:
    found = comparison()
    lines = markdown.render(replace(found, rows=found.rows[:1] * count)).splitlines()
    assert sum(line.startswith("| zero") for line in lines) == 200
    assert [line for line in lines if "further" in line] == told


def test_markdown_is_a_marked_table() -> None:
    lines = markdown.render(comparison()).splitlines()
    assert lines[0] == markdown.MARKER == "<!-- zbench-compare -->"
    rows = [line for line in lines if line.startswith("| zero")]
    assert len(rows) == 5
    assert {row.count(" | ") for row in rows} == {len(texts.HEADINGS) - 1}
    assert "❌ incorrect" in rows[0]


def test_markdown_shows_hostile_text_as_text() -> None:
    text = markdown.render(hostile())
    assert "<script" not in text
    assert "@all" not in text
    assert "[a](http" not in text
    assert "\x1b" not in text
    row = next(line for line in text.splitlines() if "failed" in line and line.startswith("|"))
    assert row.replace("\\|", "").count("|") == len(texts.HEADINGS) + 1


def test_csv_reads_back_and_holds_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_format.render(comparison()))))
    assert [row["answer"] for row in rows] == ["pass", "regression", "incorrect", "failed", "inconclusive"]
    assert float(rows[1]["step_time_change"]) == pytest.approx(0.3)
    assert json.loads(rows[1]["axes"]) == {"zero_stage": 1}
    assert int(rows[0]["head_peak_device_bytes"]) == 900_000
    cells = next(iter(csv.reader(io.StringIO(csv_format.render(hostile()).split("\n", 1)[1]))))
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)


@pytest.mark.parametrize(
    ("trial_id", "cell"),
    [
        *((f"{start}1+1", f"'{start}1+1") for start in "=+-@"),
        ("1=1", "1=1"),
        ("\r=1\n2\t3", "\\r=1\\n2\\t3"),
    ],
)
def test_a_cell_of_csv_is_one_line_of_text_that_no_spreadsheet_computes(trial_id: str, cell: str) -> None:
    found = results([replace(record(), trial_id=trial_id)])
    row = next(csv.DictReader(io.StringIO(csv_format.render(compare_runs(found, found, Settings())))))
    assert row["trial_id"] == cell
    assert row["answer"] == "inconclusive"


def test_equal_points_are_equal_texts_in_csv_whatever_the_order_of_their_axes() -> None:
    texts = {
        next(csv.DictReader(io.StringIO(csv_format.render(compare_runs(run, run, Settings())))))["axes"]
        for run in (results([record(axes=axes)]) for axes in ({"b": 1, "a": 2}, {"a": 2, "b": 1}))
    }
    assert texts == {'{"a": 2, "b": 1}'}


@pytest.mark.parametrize(
    ("fail_on", "failures", "skipped"), [({"regression"}, 2, 1), ({"inconclusive"}, 3, 0)]
)
def test_junit_counts_agree(fail_on: set[str], failures: int, skipped: int) -> None:
    suite = ET.fromstring(junit.render(comparison(fail_on=frozenset(fail_on))))
    assert suite.attrib["tests"] == str(len(suite.findall("testcase"))) == "6"
    assert suite.attrib["failures"] == str(len(suite.findall("testcase/failure"))) == str(failures)
    assert suite.attrib["errors"] == str(len(suite.findall("testcase/error"))) == "2"
    assert suite.attrib["skipped"] == str(len(suite.findall("testcase/skipped"))) == str(skipped)


def test_junit_survives_hostile_text() -> None:
    suite = ET.fromstring(junit.render(hostile()))
    assert "<script>alert(1)</script>" in suite.findall("testcase")[0].attrib["name"]


def test_bencher_metric_format() -> None:
    found = json.loads(bmf.render(comparison()))
    assert set(found) == {f"zero_stage={stage}" for stage in (0, 1, 2, 4, 6)}
    for measures in found.values():
        assert set(measures) == {
            "latency",
            "throughput",
            "peak_device_bytes",
            "peak_host_bytes",
            "traffic_bytes",
        }
        for measure in measures.values():
            assert measure["lower_value"] <= measure["value"] <= measure["upper_value"]
    assert found["zero_stage=1"]["latency"]["value"] == pytest.approx(0.13e9)


def test_github_action_benchmark_has_two_arrays() -> None:
    files = gha.render_files(comparison())
    assert set(files) == {"smaller-is-better.json", "bigger-is-better.json"}
    for text in files.values():
        for entry in json.loads(text):
            assert isinstance(entry["value"], int | float)
            assert entry["name"]
            assert entry["unit"]
    bigger = json.loads(files["bigger-is-better.json"])
    assert {entry["unit"] for entry in bigger} == {"tokens/s"}
    assert len(bigger) == 5


def test_every_format_is_written(tmp_path: Any) -> None:
    paths = exports.write(exports.files(comparison()), tmp_path / "new" / "place")
    assert {path.name for path in paths} == {
        "compare.md", "compare.json", "compare.csv", "compare.junit.xml", "compare.bmf.json",
        "smaller-is-better.json", "bigger-is-better.json",
    }  # fmt: skip
    assert all(path.read_text().endswith("\n") for path in paths)
    paths[0].write_text("older")
    assert exports.write(exports.files(comparison(), "markdown"), tmp_path / "new" / "place") == paths[:1]
    assert paths[0].read_text().startswith(markdown.MARKER)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0491, "+4.9 %"), (-0.5, "-50.0 %"), (0.0001, "+0.01 %"), (0.0, "+0.0 %"), (11.0, "x12.0")],
)
def test_percent(fraction: float, text: str) -> None:
    assert texts.percent(fraction) == text
