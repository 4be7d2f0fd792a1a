"""A trial is ended early only where its fastest step so far is clearly too slow for what it achieves."""

import pytest

from zbench.spec.metrics import Goal
from zbench.spec.trial import TrialSpec
from zbench.tune.prune import Pruner, pruner, work_per_step
from zbench.tune.space import Space

from .fakes import small_sweep

RATE = (Goal("tokens_per_s", "maximize"),)


def trial(workload: dict[str, object] | None = None, **engine: object) -> TrialSpec:
    shape = {"model": "mlp", **(workload or {})}
    sweep = small_sweep(workload=shape, axes={"zero_stage": [0]}, engine=engine)
    found = Space(sweep).trial({"zero_stage": 0})
    assert isinstance(found, TrialSpec)
    return found


def line(step: int, seconds: float, phase: str = "timed") -> dict[str, object]:
    return {"phase": phase, "step": step, "steps": 8, "seconds": seconds}


def test_a_slow_trial_ends_after_a_quarter_of_its_steps() -> None:
    watch = Pruner(work=10.0, rate_to_beat=10.0, factor=2.0)
    assert watch(line(1, 9.0)) is None, "one step proves nothing"
    assert watch(line(2, 3.0)) == "pruned after 2 of 8 steps: 3.0 times slower than the best so far"


def test_of_sixteen_steps_the_fourth_is_the_first_that_can_end_a_trial() -> None:
    watch = Pruner(work=10.0, rate_to_beat=10.0, factor=2.0)
    ended = [watch({**line(step, 9.0), "steps": 16}) is not None for step in (1, 2, 3, 4)]
    assert ended == [False, False, False, True]


@pytest.mark.parametrize(("seconds", "ended"), [(1.99, False), (2.0, True)])
def test_a_trial_ends_that_is_just_so_many_times_slower(seconds: float, ended: bool) -> None:
    watch = Pruner(work=10.0, rate_to_beat=10.0, factor=2.0)
    assert (watch(line(2, seconds)) is not None) == ended


def test_one_fast_step_saves_a_trial() -> None:
    watch = Pruner(work=10.0, rate_to_beat=10.0, factor=2.0)
    assert watch(line(1, 1.9)) is None
    assert all(watch(line(step, 50.0)) is None for step in range(2, 9))


def test_warm_up_does_not_count() -> None:
    watch = Pruner(work=10.0, rate_to_beat=10.0, factor=2.0)
    assert all(watch(line(step, 50.0, "warmup")) is None for step in range(1, 9))


def test_the_last_step_ends_nothing() -> None:
    watch = Pruner(work=10.0, rate_to_beat=10.0, factor=2.0)
    assert watch({**line(2, 50.0), "steps": 2}) is None


def test_work_is_in_one_unit_for_all_trials() -> None:
    once, four = trial(), trial(gradient_accumulation_steps=4)
    for metric in ("tokens_per_s", "samples_per_s", "tflops"):
        goal = Goal(metric, "maximize")
        assert work_per_step(four, goal) == 4 * (work_per_step(once, goal) or 0)
    assert work_per_step(four, Goal("median_step_s", "minimize")) == 1
    assert work_per_step(once, Goal("peak_device_bytes", "minimize")) is None


@pytest.mark.parametrize(
    ("metric", "work"), [("samples_per_s", 24.0), ("tokens_per_s", 384.0), ("tflops", 384.0)]
)
def test_work_is_that_of_all_ranks_and_micro_batches(metric: str, work: float) -> None:
    found = trial({"micro_batch_size": 3, "sequence_length": 16}, gradient_accumulation_steps=4)
    assert work_per_step(found, Goal(metric, "maximize")) == work, "2 ranks of 4 micro-batches of 3 samples"


@pytest.mark.parametrize(
    ("goals", "rate", "factor"),
    [
        (RATE, None, 2.0),
        (RATE, 5.0, None),
        ((*RATE, Goal("peak_device_bytes", "minimize")), 5.0, 2.0),
        ((Goal("peak_device_bytes", "minimize"),), 5.0, 2.0),
    ],
)
def test_nothing_is_pruned_without_a_measure(
    goals: tuple[Goal, ...], rate: float | None, factor: float | None
) -> None:
    assert pruner(trial(), goals, rate, factor) is None


def test_a_watch_is_made_where_there_is_one() -> None:
    assert pruner(trial(), RATE, 5.0, 2.0) is not None
