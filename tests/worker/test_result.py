"""What a trial reports: times, memory, traffic and progress, each against what it must add up to."""

import statistics
from typing import Any

import pytest

from tests.worker.conftest import MLP, ROOT, RunTrial, trial
from tests.worker.engines import LATE_SECONDS
from zbench.launch.trial import TrialRunner
from zbench.measure.clock import PHASES
from zbench.record.record import Record
from zbench.workloads import build_workload

CHUNK = 256
PADDED = sum(-(-n // CHUNK) * CHUNK for layer in ((2048, 64), (4096, 64), (16384, 256)) for n in layer)


def flat_length(world_size: int) -> int:
    """Elements of the flat layout: each parameter padded to a chunk, the whole to a chunk for each rank."""
    alignment = CHUNK * world_size
    return -(-PADDED // alignment) * alignment


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    """Return what `record` told of its progress."""
    return []


@pytest.fixture(scope="module")
def record(runner: TrialRunner, told: list[dict[str, Any]]) -> Record:
    """Return the record of a trial of five steps."""
    engine = {"zero_stage": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
    return runner.run(trial(engine, run={"steps": 5}), watch=told.append)


def test_a_step_takes_as_long_as_its_slowest_rank(runner: TrialRunner) -> None:
    late = {"engine": "tests.worker.engines:LastRankLate"}
    record = runner.run(trial(late, verify="off"))
    assert min(record.timing.step_seconds) >= LATE_SECONDS


def test_a_model_that_is_slow_in_every_fourth_step_is_not_told_faster_than_it_is(runner: TrialRunner) -> None:
    late = {"engine": "tests.worker.engines:EveryFourthStepLate"}
    timing = runner.run(trial(late, verify="off", run={"steps": 8})).timing
    assert timing.tokens_per_s <= 2 * 4 * 32 / (LATE_SECONDS / 4)
    assert timing.samples_per_s <= 2 * 4 / (LATE_SECONDS / 4)
    assert timing.mean_step_s >= LATE_SECONDS / 4


def test_times_are_of_the_timed_steps_and_rates_are_work_over_all_of_them(record: Record) -> None:
    timing = record.timing
    assert len(timing.step_seconds) == 5
    assert timing.median_step_s == statistics.median(timing.step_seconds)
    step = sum(timing.step_seconds) / 5
    assert timing.tokens_per_s == pytest.approx(2 * 2 * 4 * 32 / step)
    assert timing.samples_per_s == pytest.approx(2 * 2 * 4 / step)
    products = 32 * 64 + 64 * 64 + 64 * 256
    operations = 2 * 2 * (2 * 4 * (3 * products - 32 * 64))
    assert timing.tflops == pytest.approx(operations / step / 1e12)
    assert tuple(timing.phases) == PHASES
    assert all(seconds > 0 for seconds in timing.phases.values())
    assert sum(timing.phases.values()) <= max(timing.step_seconds)


def test_traffic_is_exact(record: Record) -> None:
    length = flat_length(2) * 4
    traffic = {kind: (t.calls, t.bytes) for kind, t in record.traffic.items()}
    norm_and_flags = (68 + 1 + 13) * 8  # the exact sum, the flags of 6 parameters, and what ranks compare
    assert traffic == {
        "reduce_scatter": (1, length),
        "all_reduce": (1, norm_and_flags),
        "all_gather": (1, length // 2),
    }


def test_memory_is_exact_and_its_categories_make_up_the_peak(record: Record) -> None:
    memory = record.memory
    assert memory.exact, record.warnings
    assert memory.peak_device_bytes == sum(memory.by_category.values())
    assert memory.by_category["parameters"] == flat_length(2) * 4
    assert memory.by_category["moments"] == flat_length(2) * 4
    assert memory.by_category["activations"] > 0
    assert memory.peak_host_bytes == 0
    assert memory.peak_rss_bytes is not None
    assert memory.peak_rss_bytes > memory.peak_device_bytes


def test_memory_is_the_same_without_verification_and_moves_with_offload(run_trial: RunTrial) -> None:
    engine = {"zero_stage": 2, "dtype": "bfloat16"}
    verified, unverified = (run_trial(trial(engine, verify=mode)) for mode in ("full", "off"))
    assert (unverified.outcome, unverified.correctness.verdict) == ("ok", "unchecked")
    offloaded = run_trial(trial(engine | {"offload_optimizer": "cpu"}, verify="off"))
    one, off, moved = (record.memory for record in (verified, unverified, offloaded))
    assert one.by_category == off.by_category
    assert one.peak_device_bytes == off.peak_device_bytes
    assert one.peak_device_bytes == (moved.peak_device_bytes or 0) + (moved.peak_host_bytes or 0)
    assert moved.by_category["host_moments"] == one.by_category["moments"]


@pytest.mark.usefixtures("record")
def test_progress_tells_every_step(told: list[dict[str, Any]]) -> None:
    steps = [(line["phase"], line["step"], line["steps"]) for line in told if line["phase"] != "reference"]
    assert steps == [("warmup", 1, 1), *(("timed", number, 5) for number in range(1, 6))]
    assert all(line["seconds"] > 0 for line in told)


def test_a_changed_text_is_not_judged_by_the_old_reference(runner: TrialRunner, tmp_path: Any) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"one text to train on, " * 20)
    spec = trial(workload={**MLP, "data": {"text": str(text)}})
    assert runner.run(spec).correctness.verdict == "identical"
    text.write_bytes(b"another text altogether " * 20)
    record = runner.run(spec)
    assert record.correctness.verdict == "unchecked"
    assert any("text changed after the reference was computed" in warning for warning in record.warnings)


def test_tokens_are_those_of_the_batches_that_were_trained_on(runner: TrialRunner) -> None:
    here = "tests.worker.models"
    workload = {"model": f"{here}:Reader", "data": {"dataset": f"{here}:padded"}, "micro_batch_size": 4}
    one = trial({"gradient_accumulation_steps": 2}, workload=workload)
    timing = runner.run(one).timing
    made = build_workload(one.workload, seed=one.run.seed, world_size=2, base_dir=ROOT)
    trained = [made.batch(step, micro, rank)[0] for step in (1, 2, 3) for micro in (0, 1) for rank in (0, 1)]
    assert len({tokens.shape for tokens in trained}) > 1
    mean = sum(tokens.numel() for tokens in trained) / 3
    assert timing.tokens_per_s == pytest.approx(mean / timing.mean_step_s)
    assert timing.samples_per_s == pytest.approx(2 * 2 * 4 / timing.mean_step_s)
    assert timing.tflops is None, "they differ from step to step"
