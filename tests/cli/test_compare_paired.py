"""`zbench compare --paired` through the command line, with stand-ins for the two interpreters."""

from pathlib import Path

import pytest

from tests.cli.conftest import stand_in


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text("name: tiny\naxes: {zero_stage: [1]}\n")
    return path


SLOWER, LARGER, WRONG = {"factor": 1.2}, {"peak": 2 * 10**6}, {"factor": 0.5, "verdict": "wrong"}


@pytest.mark.parametrize(
    ("blocks", "head", "code", "answer"),
    [
        (7, SLOWER, 1, "regression"),
        (0, SLOWER, 0, "pass"),
        (0, LARGER, 1, "regression"),
        (0, WRONG, 4, "incorrect"),
        pytest.param(7, {}, 0, "pass", marks=pytest.mark.check),
        pytest.param(7, WRONG, 4, "incorrect", marks=pytest.mark.check),
    ],
)
def test_two_interpreters(zbench, tmp_path, sweep, blocks, head, code, answer):
    """Without timing, exact figures and verdicts decide."""
    versions = stand_in(tmp_path / "base"), stand_in(tmp_path / "head", **head)
    plan = ("--blocks", blocks, "--threshold", "step_time=5%", "--json")
    output = zbench("compare", *versions, "--paired", "--sweep", sweep, *plan)
    document = output.document
    assert (document["exit_code"], document["mode"]) == (code, "paired")
    assert [row["answer"] for row in document["trials"]] == [answer]
    if blocks:
        assert [len(values) for values in document["paired"]["block_log_ratios"].values()] == [blocks]
        assert "block 7 of 7" in output.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name its file with --sweep FILE"),
        (["--sweep", "{sweep}", "--blocks", "3"], "expected 4 to 40 blocks"),
        (["--sweep", "{sweep}", "--blocks", "12:8"], "MIN at most MAX"),
        (["--sweep", "{sweep}", "--save-baseline", "x"], "--save-baseline saves stored results"),
        (["--sweep", "{sweep}", "--set", "engine.zero_stge=1"], "zero_stge"),
    ],
)
def test_bad_plans_are_refused_before_anything_runs(refusal, tmp_path, sweep, arguments, says):
    words = [word.format(sweep=sweep) for word in arguments]
    assert says in refusal("compare", tmp_path / "a", tmp_path / "b", "--paired", *words)


def test_a_measurement_is_kept_and_continued(zbench, refusal, tmp_path, sweep):
    versions = stand_in(tmp_path / "base"), stand_in(tmp_path / "head", factor=1.2)
    words = ("compare", *versions, "--paired", "--sweep", sweep, "--blocks", "7", "-o", tmp_path / "results")
    out = zbench(*words, "--max-time", "1ms")
    assert out.code == 3
    (path,) = tmp_path.glob("results/paired/*.jsonl")
    assert "stopped at --max-time after 0 of 7 blocks; no step time can be compared yet" in out.err
    assert f"2 samples kept; the same command with --resume {path} continues from there" in out.err
    versions[1].write_text("#!/bin/sh\nexit 1\n")  # the one sample that it took already is not taken again
    out = zbench(*words, "--resume", path)
    assert "cannot run the sweep (exit 1)" in out.err
    assert "block 1 of 7" in out.err
    stand_in(versions[1], factor=1.2)
    out = zbench(*words, "--resume", "last", "--json")
    assert (out.document["exit_code"], out.document["paired"]["stopped"]) == (1, None)
    assert f"30 samples kept; the same command with --resume {path}" in out.err
    assert "blocks was [7, 7], is [8, 8]" in refusal(*words, "--blocks", "8", "--resume", path)
    assert "no such measurement" in refusal(*words, "--resume", "gone")
