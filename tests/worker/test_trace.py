"""`zbench run --trace`: a profiler's trace, memory by category over a step, and bounds, beside the record."""

import json
from pathlib import Path

import pytest

from tests.worker.conftest import trial
from zbench.launch.trial import TrialRunner
from zbench.measure.clock import PhaseClock
from zbench.report.detail import trace_lines
from zbench.report.html.timelines import memory_timeline
from zbench.worker.trace import bounds, update_bytes


@pytest.fixture(scope="module")
def traced(runner: TrialRunner) -> tuple[Path, str]:
    """Return the run directory and trial of a traced repeat: stage 2, offloaded."""
    looked_at = trial({"zero_stage": 2, "offload_optimizer": "cpu"}, verify="off")
    record = runner.run(looked_at, trace=True)
    assert record.outcome == "ok", record.error
    return runner.run_dir, looked_at.trial_id


def test_the_trace_is_chromes_and_names_the_phases(traced: tuple[Path, str]) -> None:
    run_dir, trial_id = traced
    document = json.loads((run_dir / "traces" / f"{trial_id}.trace.json").read_text())
    names = {event.get("name") for event in document["traceEvents"]}
    assert {"forward", "backward", "optimizer"} <= names
    assert any(str(name).startswith("aten::") for name in names)


def test_memory_is_told_by_category_host_and_device_apart(traced: tuple[Path, str]) -> None:
    run_dir, trial_id = traced
    document = json.loads((run_dir / "traces" / f"{trial_id}.memory.json").read_text())
    samples = document["samples"]
    assert len(samples) >= 2
    assert all(
        set(sample["host"]) and all(k.startswith("host_") for k in sample["host"]) for sample in samples
    )
    assert any("parameters" in sample["device"] for sample in samples)
    assert document["limit_bytes"] is None, "no limit was set, and a CPU has none of its own"
    assert set(document["bounds"]) == {"compute", "exposed_communication", "exposed_update", "other"}


def test_what_a_trace_says_is_shown_with_the_trial(traced: tuple[Path, str]) -> None:
    run_dir, trial_id = traced
    lines = dict(trace_lines(run_dir, trial_id))
    assert "at least" in lines["exposed update"]
    assert "perfetto" in lines["trace"]
    assert Path(lines["memory timeline"]).read_text().lstrip().startswith("<?xml")
    assert dict(trace_lines(run_dir, "0" * 12)) == {}


def test_the_limit_is_drawn() -> None:
    samples = [{"seconds": t / 1000, "device": {"parameters": 1 << 20}, "host": {}} for t in range(3)]
    document = {"samples": samples}
    with_limit, without = (
        memory_timeline({**document, "limit_bytes": limit}, "t").file() for limit in (3 << 20, None)
    )
    assert "stroke-dasharray" in with_limit
    assert "stroke-dasharray" not in without


def test_bounds_add_up_to_the_step() -> None:
    phases = {"forward": 1.0, "backward": 2.0, "reduce": 0.5, "gather": 0.25, "optimizer": 0.75}
    found = bounds(phases, 5.0, flops=4e9, update_bytes=10, flops_per_s=2e9, bytes_per_s=20)
    assert sum(part["seconds"] or 0 for part in found.values()) == 5.0
    assert found["compute"] == {"seconds": 3.0, "least_seconds": 2.0}
    assert found["exposed_update"]["least_seconds"] == 0.5
    assert bounds(phases, 5.0, None, 0, 1.0, 1.0)["compute"]["least_seconds"] is None
    assert update_bytes({"host_moments": 80, "parameters": 7}) == 280


def test_a_phase_is_annotated_only_while_somebody_asks() -> None:
    clock, seen = PhaseClock(), list[str]()
    with clock.phase("forward"):
        pass

    class Noted:
        def __init__(self, name: str) -> None:
            seen.append(name)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    clock.annotate = Noted
    with clock.phase("backward"):
        pass
    assert seen == ["backward"]
