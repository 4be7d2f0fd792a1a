"""One configuration in full, runs as tables and lists, finished or not."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.synthetic import BASE_ID, trial, write_run
from tests.cli.conftest import only_run
from zbench.record import lines
from zbench.record.record import Timing
from zbench.record.store import load_records


def test_run_shows_everything_that_was_measured(zbench, sweep_file):
    output = zbench("run", sweep_file, "--set", "zero_stage=1")
    assert output.code == 0
    lines = [line.split() for line in output.out.splitlines()]
    assert ["outcome", "ok"] in lines
    assert ["verdict", "identical"] in lines
    assert ["mean", "step", "10", "ms", "(each", "repeat:", "10", "ms,", "10", "ms)"] in lines
    assert "axes: {}" in (only_run() / "spec.yaml").read_text()
    assert not (only_run() / "traces").exists(), "nobody asked for one"


def test_run_takes_the_base_of_a_file_and_resumes(zbench, refusal, sweep_file):
    trials = zbench("run", sweep_file, "--json").document["trials"]
    assert {record["config"]["engine"]["zero_stage"] for record in trials} == {0}
    assert zbench("sweep", "--resume", "last", "--json").document["trials"] == trials
    sweep_file.write_text(sweep_file.read_text().replace("repeats: 2", "repeats: 3"))
    assert "run.repeats was 2, is 3" in refusal("sweep", sweep_file, "--resume", "last")


def test_show_repeats_the_table_of_a_run(zbench, sweep_file):
    table = zbench("sweep", sweep_file).out
    assert zbench("show").out == table
    assert zbench("show", "tried").out == table
    document = zbench("show", "--json").document
    assert (document["exit_code"], len(document["trials"])) == (0, 4)
    rows = document["configurations"]
    assert [(row["repeats"], row["tokens_per_s"], row["verdict"]) for row in rows] == [
        (2, 1000, "identical")
    ] * 2


def test_show_writes_rows_for_spreadsheets_and_pandas(zbench, refusal, sweep_file, tmp_path):
    zbench("sweep", sweep_file)
    head, *rows = list(csv.reader(zbench("show", "--format", "csv").out.splitlines()))
    assert head[:5] == ["trial_id", "mark", "zero_stage", "outcome", "repeats"]
    assert [row[2:5] for row in rows] == [["0", "ok", "2"], ["1", "ok", "2"]]
    assert [float(row[head.index("tokens_per_s")]) for row in rows] == [1000.0] * 2
    zbench("show", "--format", "csv", "--to", tmp_path / "rows.csv")
    assert list(csv.reader((tmp_path / "rows.csv").open())) == [head, *rows]
    assert "parquet needs --to FILE" in refusal("show", "--format", "parquet")
    assert "--to FILE needs" in refusal("show", "--to", "rows")
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    zbench("show", "--format", "parquet", "--to", tmp_path / "rows.parquet")
    frame = pandas.read_parquet(tmp_path / "rows.parquet")
    assert (list(frame.columns), frame.zero_stage.tolist()) == (head, [0, 1])


def test_list_names_each_run_with_its_best(zbench, sweep_file):
    zbench("sweep", sweep_file)
    zbench("sweep", sweep_file, "--set", 'workload.options={"do": "crash"}')
    rows = zbench("list", "--json").document["runs"]
    assert [(row["configurations"], row["failed"], row["recommended"] is None) for row in rows] == [
        (2, 0, False),
        (2, 2, True),
    ]
    assert all(row["machine"] == rows[0]["machine"] for row in rows)
    axes = {record.trial_id: record.axes for record in load_records(Path(rows[0]["run_dir"]))}
    assert rows[0]["best_axes"] == axes[rows[0]["recommended"]]
    zbench("tag", rows[0]["run_id"], "before")
    text = zbench("list").out
    assert all(row["run_id"] in text for row in rows)
    assert f"{rows[0]['run_id']} (before)" in text
    assert [row["tags"] for row in zbench("list", "--json").document["runs"]] == [["before"], []]


def test_list_goes_on_past_a_run_that_cannot_be_read(zbench, sweep_file, monkeypatch):
    zbench("sweep", sweep_file)
    trials = only_run() / "trials.jsonl"
    trials.write_text("{damaged\n" + trials.read_text())
    (row,) = zbench("list", "--json").document["runs"]
    assert "trials.jsonl:1: damaged line" in row["problem"]
    monkeypatch.setenv("COLUMNS", "60")
    problem = f"{row['sweep']}/{row['run_id']} cannot be read: {row['problem']}"
    assert zbench("list").out == f"{problem}\n", "a terminal folds it, and a pipe does not"


@pytest.mark.parametrize("step", [0.0, -0.013])
def test_a_record_of_impossible_figures_is_skipped_with_a_note_and_measured_again(zbench, sweep_file, step):
    zbench("sweep", sweep_file)
    run = only_run()
    records = load_records(run)
    timing = Timing([step, 0.01, 0.01], 0.01, 1.0, 1.0)
    written = [replace(records[0], timing=timing), *records[1:]]
    (run / "trials.jsonl").write_bytes(lines.encode_all(written))
    (run / "end.json").unlink()
    for words in ("list", "show", "report", "history", "publish --to site", "check results"):
        output = zbench(*words.split())
        assert output.code == 0, output.err
        assert f"trials.jsonl:1: this record is skipped: a step time is {step}" in output.err
    assert len(zbench("show", "--json").document["trials"]) == 3
    assert zbench("sweep", "--resume", "last").code == 0
    assert len(load_records(run)) == 4
    assert zbench("compare", str(run), str(run)).code != 70


ENGINES = (("builtin", 0, 0.09), ("builtin", 1, 0.11), ("ddp", 0, 0.1), ("zero_redundancy", 1, 0.12))
BEST_OF_TORCH = ("--relative-to", "best:engine=ddp,zero_redundancy")


@pytest.fixture
def engines(tmp_path) -> Path:
    """Return a run of four configurations, three repeats each."""
    records = [
        item
        for engine, stage, step_s in ENGINES
        for item in trial([step_s, step_s * 1.02, step_s], axes={"engine": engine, "zero_stage": stage})
    ]
    return write_run(tmp_path / "results" / "engines" / BASE_ID, records)


def test_configurations_are_shown_relative_to_their_counterparts(zbench, engines):
    """As a table for each stage, as JSON, Markdown, a page and CSV."""
    shown = zbench("show", *BEST_OF_TORCH, "--by", "zero_stage", "-q")
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines() if line.strip()]
    assert lines[0] == ["engine=builtin", "zero_stage=0", "against", "engine=ddp"]
    assert lines[2][:3] == ["0.90", "1.00", "90"]
    assert lines[4] == ["engine=builtin", "zero_stage=1", "against", "engine=zero_redundancy"]
    rows = zbench("show", *BEST_OF_TORCH, "--json").document["relative"]
    assert [(row["axes"]["zero_stage"], row["against_axes"]["engine"]) for row in rows] == [
        (0, "ddp"),
        (1, "zero_redundancy"),
    ]
    assert [row["time_ratio"] for row in rows] == pytest.approx([0.9, 11 / 12])
    page = engines / "page.html"
    assert zbench("report", *BEST_OF_TORCH, "--html", page, "--json").document["relative"] == rows
    assert "Beside their counterparts" in page.read_text()
    text = zbench("report", *BEST_OF_TORCH).out
    assert "| 1 | engine=zero\\_redundancy | 0.92 | 1.00 |" in text
    assert "time 0.91 in the median, 0.92 at most, the whole interval is above 1 in 0 of 2 rows" in text
    header, *table = csv.DictReader(zbench("export", "last", "--to", "csv", *BEST_OF_TORCH).out.splitlines())
    assert [float(row["time_ratio"]) for row in (header, *table)] == pytest.approx([0.9, 11 / 12])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "--relative-to", "engine=deepspeed"], "no configuration has a counterpart with"),
        (["show", "--by", "engine"], "add --relative-to KEY=VALUE"),
        (["export", "last", *BEST_OF_TORCH], "--to csv and --relative-to"),
        (["export", "last", "--to", "csv", "--trial", "a", *BEST_OF_TORCH], "exclude --trial"),
    ],
)  # fmt: skip
def test_relative_tables_that_cannot_be_are_refused(refusal, engines, words, says):
    assert says in refusal(*words)
