"""`zbench compare --paired` through the command line, with stand-ins for the two interpreters."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.calling import stand_in
from tests.launch.processes import MARK, marked, until


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text("name: tiny\naxes: {zero_stage: [1]}\n")
    return path


@pytest.mark.parametrize("blocks", [7, 0])
@pytest.mark.parametrize(
    ("head", "code", "answer"),
    [
        ({}, 0, "pass"),
        ({"factor": 1.2}, 1, "regression"),
        ({"peak": 2 * 10**6}, 1, "regression"),
        ({"factor": 0.5, "verdict": "wrong"}, 4, "incorrect"),
    ],
)
def test_two_interpreters(zbench, tmp_path, sweep, blocks, head, code, answer):
    """Without timing, exact figures and verdicts decide."""
    if blocks == 0 and answer == "regression" and "factor" in head:
        code, answer = 0, "pass"
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
        (["--sweep", "{sweep}", "--blocks", "many"], "expected a number of blocks or MIN:MAX"),
        (["--sweep", "{sweep}", "--blocks", "0:4"], "expected a number of blocks or MIN:MAX"),
        (["--sweep", "{sweep}", "--save-baseline", "x"], "--save-baseline saves stored results"),
        (["--sweep", "gone.yaml"], "gone.yaml"),
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


def test_a_measurement_that_is_killed_at_drawn_moments_loses_no_sample(zbench, tmp_path, sweep):
    check_kills(zbench, tmp_path, sweep, kills=2, blocks=7)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_measurement_that_is_killed_many_times_loses_no_sample(zbench, tmp_path, sweep):
    check_kills(zbench, tmp_path, sweep, kills=40, blocks=40)


def check_kills(zbench, tmp_path, sweep, *, kills, blocks):
    """Kill the command at random moments after a sample; every kept line stays, and nothing runs on."""
    lot = random.Random(kills)
    mark = f"paired-{os.getpid()}"
    samples = b""
    versions = stand_in(tmp_path / "base"), stand_in(tmp_path / "head", factor=1.2)
    words = (
        "compare",
        *versions,
        "--paired",
        "--sweep",
        sweep,
        "--blocks",
        blocks,
        "-o",
        tmp_path / "results",
    )
    for _ in range(kills):
        resume = ("--resume", "last") if samples else ()
        command = subprocess.Popen(
            [sys.executable, "-m", "zbench.cli.main", *map(str, (*words, *resume))],
            env=os.environ | {MARK: mark},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        while samples_in(tmp_path) == samples and command.poll() is None:
            time.sleep(0.005)
        assert command.poll() is None, "it is long enough"
        time.sleep(lot.uniform(0, 0.2))
        command.kill()
        command.wait()
        until(lambda: not marked(mark), "everything ends with the command")
        now = samples_in(tmp_path)
        assert now.startswith(samples)
        samples = now[: now.rfind(b"\n") + 1]
    out = zbench(*words, "--resume", "last", "--json")
    assert (out.document["exit_code"], out.document["paired"]["stopped"]) == (1, None)
    assert samples_in(tmp_path).startswith(samples)
    assert [len(values) for values in out.document["paired"]["block_log_ratios"].values()] == [blocks]
    assert f"{2 + 4 * blocks} samples kept" in out.err


def samples_in(place: Path) -> bytes:
    """Return what the one measurement has kept so far."""
    return b"".join(path.read_bytes() for path in place.glob("results/paired/*.jsonl"))
