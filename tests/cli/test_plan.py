"""`plan`, `schema`, `import` and `export`, through the command line."""

import json
from pathlib import Path

import pytest

SWEEP = """
axes: {zero_stage: [0, 1], offload_optimizer: [none, cpu]}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def test_plan_lists_trials_and_those_that_cannot_exist(sweep, zbench):
    plan = zbench("plan", sweep, "--set", "run.repeats=4")
    lines = plan.out.splitlines()
    assert plan.code == 0
    assert plan.err == f"run them with: zbench sweep {sweep} --set run.repeats=4\n"
    assert lines[0].endswith("  zero_stage=0 offload_optimizer=none")
    assert "zero_stage=0 offload_optimizer=cpu  invalid: offload_optimizer needs" in lines[3]
    assert lines[4] == "sweep: 3 trials of 4 repeats, 1 invalid"
    assert zbench("sweep", sweep, "--dry-run", "--seed", "0").code == 0, "the least seed"


def test_plan_of_a_search_prints_the_space(sweep, zbench):
    sweep.write_text("search: {method: tpe}\naxes:\n  lr: {low: 0.1, high: 1, log: true}\n")
    plan = zbench("plan", sweep)
    assert plan.code == 0
    assert plan.out.splitlines()[0] == "sweep: tpe draws 40 points from"
    assert zbench("plan", sweep, "--json").document["axes"]["lr"]["range"]["log"] is True


@pytest.mark.parametrize("command", ["plan", "sweep --dry-run", "tune --dry-run", "run --dry-run"])
def test_a_plan_prints_the_trials_runs_nothing_and_says_what_it_does_not_know(tmp_path, zbench, command):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    python.chmod(0o755)
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"engine: {{engine: ddp, engine_python: {python}, zero_stage: 0}}\naxes: {{lr: [0.1, 0.2]}}\n"
    )
    output = zbench(*command.split(), file)
    assert output.code == 0, output.err
    assert f"{python}: not checked, because a plan starts nothing" in output.err
    assert ("lr=0.1" in output.out) == (not command.startswith("run"))
    assert not (tmp_path / "was-run").exists()
    assert not (tmp_path / "results").exists()
    assert zbench("sweep", file).code == 2
    assert (tmp_path / "was-run").exists()


def test_a_mistake_is_one_message_and_leaves_nothing(sweep, refusal):
    sweep.write_text("axes:\n  zero_stag: [1]\n")
    assert f"{sweep}:2: axes.zero_stag: unknown key" in refusal("plan", sweep)
    assert list(sweep.parent.iterdir()) == [sweep]


def test_an_exported_configuration_imports_again(sweep, zbench):
    sweep.write_text("engine: {zero_stage: 3, offload_param: cpu, reduce_at: boundary}\n")
    exported, imported = sweep.with_name("ds.json"), sweep.with_name("again.yaml")
    written = zbench("export", sweep, "--to", "deepspeed", "--output", exported)
    assert (written.code, written.out) == (0, "")
    assert "engine.reduce_at has no counterpart" in written.err
    assert zbench("init", imported, "--from", exported).code == 0
    again = zbench("export", imported, "--set", "axes={}", "--set", "engine.zero_stage=3")
    assert json.loads(again.out) == json.loads(exported.read_text())
    assert zbench("init", imported, "--from", exported).code == 2  # never overwrites


def test_export_of_several_trials_asks_which(sweep, zbench, refusal):
    message = refusal("export", sweep)
    assert "3 trials match; choose one with --trial ID (or best, of a run):" in message
    trial = message.splitlines()[-1].split()[0]
    assert json.loads(zbench("export", sweep, "--trial", trial[:8])[1])["zero_optimization"]["stage"] == 1
    assert "no trial 'zzz'" in refusal("export", sweep, "--trial", "zzz")
