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


def setting(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


ALONE = setting("yardstick=none")  # a heat with yardsticks takes seconds


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


def test_every_configuration_is_identical_to_plain_pytorch(real):
    document = real("sweep", "sweep.yaml", "--json", "-q").document
    outcomes = {r["trial_id"]: (r["outcome"], r["correctness"]["verdict"]) for r in document["trials"]}
    assert sorted(outcomes.values()) == [("invalid", "unchecked"), *[("ok", "identical")] * 3]
    assert document["exit_code"] == 0
    best = next(r for r in document["trials"] if r["trial_id"] == document["recommended"])
    leaders = [r for r in document["trials"] if r["trial_id"] in document["indistinguishable"]] or [best]
    assert best in leaders
    assert best["memory"]["exact"]
    assert not (only_run() / "references").exists()


def test_engine_that_trains_something_else_is_found_and_never_the_best(real):
    axes = setting("axes={engine: [builtin, 'broken:build']}")
    document = real("sweep", "sweep.yaml", *axes, *ALONE, "--json", "-q").document
    assert document["exit_code"] == 4
    found = {r["axes"]["engine"]: r for r in document["trials"]}
    assert found["builtin"]["correctness"]["verdict"] == "identical"
    broken = found["broken:build"]["correctness"]
    assert broken["verdict"] in ("drifted", "wrong")
    assert broken["worst_parameter"]
    assert document["recommended"] == found["builtin"]["trial_id"]
    shown = real("show")
    assert f"{broken['verdict']} engine=broken:build: {broken['diagnosis']}" in shown.out


def test_trial_over_its_memory_limit_is_out_of_memory_and_the_rest_goes_on(real):
    settings = ("memory_limit=200Mi", "verify.mode=off", "axes={micro_batch_size: [1, 512]}")
    document = real("sweep", "sweep.yaml", "--json", "-q", *ALONE, *setting(*settings)).document
    assert document["exit_code"] == 6
    assert [(r["axes"]["micro_batch_size"], r["outcome"]) for r in document["trials"]] == [
        (1, "ok"), (512, "oom"),
    ]  # fmt: skip


def test_a_file_that_is_edited_before_the_run_goes_on_ends_it(real, refusal):
    """Else one ranking would be of two models: the repeats before the edit, and those after it."""
    settings = setting("engine.engine=broken:build", "axes={zero_stage: [1]}")
    assert real("sweep", "sweep.yaml", *ALONE, *settings).code == 4
    run = only_run()
    kept = (run / "trials.jsonl").read_bytes()
    (record,) = load_records(run)
    assert {*record.inputs} >= {"text.txt", "broken.py"}
    for edited in ("text.txt", "broken.py"):
        before = Path(edited).read_text()
        Path(edited).write_text(before + "# more\n")
        message = refusal("sweep", "--resume", "last", "--repeats", "2")
        assert f"{edited} changed while the run was under way" in message
        assert (run / "trials.jsonl").read_bytes() == kept
        Path(edited).write_text(before)
    assert real("sweep", "--resume", "last", "--repeats", "2").code == 4
    assert len(load_records(run)) == 2
