"""`zbench history` through the command line, over a directory and over a git branch."""

from pathlib import Path

import pytest

from tests.analysis.synthetic import trial, write_run

RUNS, CHANGE = 14, 8


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for i in range(RUNS):
        step = (0.1 if i < CHANGE else 0.12) * (1 + 0.002 * (i % 3))
        directory = tmp_path / "results" / "example" / f"202601{i + 1:02}-000000-aaaa"
        write_run(directory, trial([step, step]), git={"commit": f"{i:040x}", "dirty": i == CHANGE})
    return tmp_path / "results"


def test_a_table_with_sparklines_and_the_commit_blamed(zbench, out):
    zbench("tag", f"202601{CHANGE + 1:02}-000000-aaaa", "slow")
    code, text, _ = zbench("history")
    assert code == 0
    assert "▁" in text
    assert "█" in text
    assert (
        f"zero_stage=1: +20.0 % since 202601{CHANGE + 1:02}-000000-aaaa [slow] (000000000..000000000+)"
        in text
    )
    (series,) = zbench("history", out, "--json").document["series"]
    assert len(series["visits"]) == RUNS
    (change,) = series["changes"]
    assert change["after_commit"] == f"{CHANGE - 1:040x}"
    assert change["commit"] == f"{CHANGE:040x}+changes"


def test_sweeps_are_apart_though_they_hold_the_same_configuration(zbench, out):
    write_run(out / "other" / "20260201-000000-aaaa", trial([0.3]))
    both = zbench("history", out, "--json").document["series"]
    assert [(one["sweep"], len(one["visits"])) for one in both] == [("example", RUNS), ("other", 1)]
    text = zbench("history", out).out
    assert "\nexample: zero_stage=1 " in text
    assert "\nother: zero_stage=1 " in text


def test_a_damaged_run_is_named_and_left_out(zbench, out):
    damaged = out / "example" / "20260101-000000-aaaa" / "trials.jsonl"
    damaged.write_text("not json\n" + damaged.read_text())
    history = zbench("history", out, "--json")
    assert "left out" in history.err
    assert len(history.document["series"][0]["visits"]) == RUNS - 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone"], "no such directory"),
        (["{out}/empty"], "has no finished run"),
        (["{out}", "--metric", "median_step"], "did you mean 'median_step_s'"),
        (["{out}", "--metric", "verdict"], "verdict is not a number"),
        (["{out}", "--alpha", "2"], "--alpha: expected a probability"),
    ],
)
def test_bad_input(refusal, out, arguments, says):
    (out / "empty").mkdir()
    assert says in refusal("history", *(word.format(out=out) for word in arguments))
