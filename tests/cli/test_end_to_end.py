"""Real sweeps from the command line: real ranks, the real engine, real verdicts."""

import sys

import pytest

from tests.cli.conftest import only_run
from zbench.launch import executor

RIGHT = "from zbench.engine import build_engine as build\n"
BROKEN = '''
from zbench.engine import build_engine

def build(model, spec, process_group=None, *, instruments=None):
    """Train with one parameter's gradient scaled by 1 + 1e-3."""
    name, parameter = list(model.named_parameters())[-1]
    parameter.register_hook(lambda grad: grad * (1 + 1e-3))
    return build_engine(model, spec, process_group, instruments=instruments)
'''


@pytest.fixture
def real(zbench, monkeypatch, tmp_path):
    """Return the command line with the real workers; the sweep's text and a broken engine lie beside it."""
    monkeypatch.setattr(executor, "DEFAULT_TARGETS", executor.Targets())
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question; " * 20)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "sweep.yaml").write_text(
        "workload: {model: gpt, preset: nano, data: {text: text.txt}, sequence_length: 32}\n"
        "run: {world_size: 2, repeats: 1, warmup_steps: 1, steps: 2, timeout: 100s}\n"
        "engine: {gradient_clipping: 1.0}\n"
        "axes: {zero_stage: [0, 2], offload_optimizer: [none, cpu]}\n"
    )
    return zbench


def test_a_wrong_engine_is_named_and_never_the_best(real):
    """An offload that cannot be is a row as well, and is not run."""
    axes = "axes={engine: [builtin, 'broken:build']}"
    impossible = "include=[{zero_stage: 0, offload_optimizer: cpu}]"
    words = ("--set", axes, "--set", "engine.zero_stage=1", "--set", impossible)
    document = real("sweep", "sweep.yaml", *words, "--json", "-q").document
    assert document["exit_code"] == 4
    rows = {row["axes"].get("engine"): row for row in document["trials"] if row["outcome"] == "ok"}
    assert rows["builtin"]["correctness"]["verdict"] == "identical"
    broken = rows["broken:build"]["correctness"]
    assert broken["verdict"] in ("drifted", "wrong")
    assert broken["worst_parameter"]
    assert [row["outcome"] for row in document["trials"]].count("invalid") == 1
    assert document["recommended"] == rows["builtin"]["trial_id"]
    assert document["indistinguishable"] in ([], [rows["builtin"]["trial_id"]])
    assert rows["builtin"]["memory"]["exact"]
    assert not (only_run() / "references").exists()
    assert f"{broken['verdict']} engine=broken:build" in real("show").out


@pytest.mark.check
def test_a_wrong_engine_in_head_ends_a_comparison_with_4(real, tmp_path):
    for side, code in (("base", RIGHT), ("head", BROKEN)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "versioned.py").write_text(code)
        (tmp_path / f"python-{side}").write_text(
            f'#!/bin/sh\nPYTHONPATH={tmp_path / side} exec {sys.executable} "$@"\n'
        )
        (tmp_path / f"python-{side}").chmod(0o755)
    words = ("--paired", "--sweep", "sweep.yaml", "--blocks", "0", "--set", "axes={zero_stage: [1]}")
    versions = (tmp_path / "python-base", tmp_path / "python-head")
    output = real("compare", *versions, *words, "--set", "engine.engine=versioned:build", "--json")
    assert output.document["exit_code"] == 4
    assert [row["answer"] for row in output.document["trials"]] == ["incorrect"]
