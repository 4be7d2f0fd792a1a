"""`zbench run --trace`: a profiler's trace, memory by category over a step, and bounds, beside the record."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.worker.conftest import trial
from zbench.launch.trial import TrialRunner
from zbench.report.detail import trace_lines
from zbench.worker.trace import bounds, memory_samples, update_bytes


@pytest.fixture(scope="module")
def traced(runner: TrialRunner) -> tuple[Path, str]:
    """Return the run directory and trial of a traced repeat: stage 2, offloaded."""
    looked_at = trial({"zero_stage": 2, "offload_optimizer": "cpu"}, verify="off")
    record = runner.run(looked_at, trace=True)
    assert record.outcome == "ok", record.error
    return runner.run_dir, looked_at.trial_id


def test_the_trace_is_chromes_and_memory_has_categories_of_host_and_device(traced: tuple[Path, str]) -> None:
    run_dir, trial_id = traced
    traces = run_dir / "traces"
    trace = json.loads((traces / f"{trial_id}.trace.json").read_text())
    document = json.loads((traces / f"{trial_id}.memory.json").read_text())
    names = {str(event.get("name")) for event in trace["traceEvents"]}
    assert {"forward", "backward", "optimizer", "[memory]"} <= names
    assert any(name.startswith("aten::") for name in names)
    samples = document["samples"]
    assert len(samples) >= 2
    assert all(
        set(sample["host"]) and all(k.startswith("host_") for k in sample["host"]) for sample in samples
    )
    assert any("parameters" in sample["device"] for sample in samples)
    assert document["limit_bytes"] is None, "no limit was set, and a CPU has none of its own"
    assert set(document["bounds"]) == {"compute", "exposed_communication", "exposed_update", "other"}
    assert document["bounds"]["compute"]["least_seconds"] > 0, "the operations of this model are known"


@pytest.mark.parametrize(("kind", "rest"), [("cpu", 100 - 30 - 50), ("cuda", 100 - 30)])
def test_activations_are_what_lives_on_the_device_beside_the_rest(kind: str, rest: int) -> None:
    """What is in host memory is a part of what lives on a CPU, and no part of what lives on a GPU."""
    engine = SimpleNamespace(memory_by_category=lambda: {"parameters": 30, "host_moments": 50})
    meter = SimpleNamespace(live=lambda: 100)
    subject: Any = SimpleNamespace(engine=engine, meter=meter, device=torch.device(kind))
    with memory_samples(subject) as samples:
        pass
    assert all(one["device"] == {"parameters": 30, "activations": rest} for one in samples)


def test_what_a_trace_says_is_shown_with_the_trial(traced: tuple[Path, str]) -> None:
    run_dir, trial_id = traced
    lines = dict(trace_lines(run_dir, trial_id))
    assert "at least" in lines["exposed update"]
    assert "perfetto" in lines["trace"]
    assert Path(lines["memory timeline"]).read_text().lstrip().startswith("<?xml")
    assert dict(trace_lines(run_dir, "0" * 12)) == {}


def test_bounds_add_up_to_the_step() -> None:
    phases = {"forward": 1.0, "backward": 2.0, "reduce": 0.5, "gather": 0.25, "optimizer": 0.75}
    parts = bounds(phases, 5.0, flops=4e9, update_bytes=10, flops_per_s=2e9, bytes_per_s=20)
    assert sum(part["seconds"] or 0 for part in parts.values()) == 5.0
    assert parts["compute"] == {"seconds": 3.0, "least_seconds": 2.0}
    assert parts["exposed_communication"] == {"seconds": 0.75, "least_seconds": 0.0}
    assert parts["other"] == {"seconds": 0.5, "least_seconds": 0.0}
    assert bounds(phases, 4.0, None, 0, 1.0, 1.0)["other"]["seconds"] == 0.0, (
        "the clock of a part may be longer"
    )
    assert parts["exposed_update"]["least_seconds"] == 0.5
    assert bounds(phases, 5.0, None, 0, 1.0, 1.0)["compute"]["least_seconds"] is None
    assert update_bytes({"host_moments": 80, "parameters": 7}) == 280
