"""Real sweeps from the command line: real ranks, the real engine, real verdicts."""

from pathlib import Path

import pytest

from tests.cli.calling import only_run
from zbench.launch import executor
from zbench.record.store import load_records

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


def test_right_engines_are_identical_to_plain_pytorch_and_a_wrong_one_is_found_and_never_the_best(real):
    """An offload that cannot be is a row as well, and is not run."""
    axes = "axes={engine: [builtin, 'broken:build'], offload_optimizer: [none, cpu]}"
    words = (
        "--set",
        axes,
        "--set",
        "engine.zero_stage=1",
        "--set",
        "include=[{zero_stage: 0, offload_optimizer: cpu}]",
    )
    document = real("sweep", "sweep.yaml", *words, "--json", "-q").document
    assert document["exit_code"] == 4
    rows = {
        (r["axes"]["engine"], r["axes"]["offload_optimizer"]): r
        for r in document["trials"]
        if r["outcome"] == "ok"
    }
    verdicts = {axes: row["correctness"]["verdict"] for axes, row in rows.items()}
    assert [verdicts["builtin", place] for place in ("none", "cpu")] == ["identical"] * 2
    assert {verdicts["broken:build", place] for place in ("none", "cpu")} <= {"drifted", "wrong"}
    assert [r["outcome"] for r in document["trials"]].count("invalid") == 1
    broken = rows["broken:build", "none"]["correctness"]
    assert broken["worst_parameter"]
    right = {rows["builtin", place]["trial_id"] for place in ("none", "cpu")}
    assert document["recommended"] in right
    assert {*document["indistinguishable"]} <= right
    assert rows["builtin", "none"]["memory"]["exact"]
    assert not (only_run() / "references").exists()
    assert f"{broken['verdict']} engine=broken:build" in real("show").out


def test_a_file_that_is_edited_before_the_run_goes_on_ends_it(real, refusal):
    """Else one ranking would be of two models: the repeats before the edit, and those after it."""
    flags = ("--set", "axes={zero_stage: [1]}", "--set", "verify.mode=off", "--set", "yardstick=none")
    assert real("sweep", "sweep.yaml", "--set", "engine.engine=broken:build", *flags).code == 0
    run = only_run()
    content = (run / "trials.jsonl").read_bytes()
    (record,) = load_records(run)
    assert {*record.inputs} >= {"text.txt", "broken.py"}
    Path("text.txt").write_text(Path("text.txt").read_text() + "more")
    message = refusal("sweep", "--resume", "last", "--repeats", "2")
    assert "text.txt changed while the run was under way" in message
    assert (run / "trials.jsonl").read_bytes() == content
