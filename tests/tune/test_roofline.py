"""With a machine's rates a search begins with what they call fastest, and still tries everything."""

from typing import Any

from zbench.estimate.result import Estimate, NotSimulated
from zbench.estimate.work import StepWork
from zbench.spec.trial import TrialSpec
from zbench.tune.roofline import MOST, fastest_first
from zbench.tune.space import Space

from .fakes import small_sweep

RATES = {"flops": 1e12, "memory_bandwidth": 1e9, "host_memory_bandwidth": 1e9, "host_link": 1e9}


def simulated(trial: TrialSpec) -> Estimate | NotSimulated:
    """Higher stages stream less; stage 1 with offload cannot be simulated."""
    stage = trial.engine.zero_stage
    if stage == 1 and trial.engine.offload_optimizer == "cpu":
        return NotSimulated("made to fail")
    return Estimate(0, 0, 0, {}, {}, "", [], {}, None, 0.0, StepWork(streamed_bytes=10**9 * (4 - stage)))


def test_the_fastest_come_first_and_the_unknown_last() -> None:
    space = Space(small_sweep(machine=RATES))
    points = space.points() or []
    ordered = fastest_first(points, space, simulated)
    stages = [point["zero_stage"] for point in ordered]
    assert stages == [2] * 6 + [1] * 3 + [0] * 3 + [1] * 3
    assert sorted(map(str, ordered)) == sorted(map(str, points))


def test_the_unknown_come_last_however_slow_the_others_are() -> None:
    """The slowest takes four seconds a step, so its rate is a quarter."""
    space = Space(small_sweep(machine=RATES, objective={"minimize": "median_step_s"}))
    ordered = fastest_first(space.points() or [], space, simulated)
    assert [point["zero_stage"] for point in ordered] == [2] * 6 + [1] * 3 + [0] * 3 + [1] * 3


def test_work_counts_as_well_as_time() -> None:
    """Four times the work in two and a half times the time is faster."""

    def ask(trial: TrialSpec) -> Estimate:
        streamed = 10**9 * (1 + trial.workload.micro_batch_size)
        return Estimate(0, 0, 0, {}, {}, "", [], {}, None, 0.0, StepWork(streamed_bytes=streamed))

    space = Space(small_sweep(machine=RATES, axes={"micro_batch_size": [1, 4, 2]}))
    ordered = fastest_first(space.points() or [], space, ask)
    assert [point["micro_batch_size"] for point in ordered] == [4, 2, 1]


def test_without_rates_or_where_time_is_no_goal_nothing_is_simulated() -> None:
    def never(trial: TrialSpec) -> Any:
        raise AssertionError

    plain = Space(small_sweep())
    assert fastest_first(plain.points() or [], plain, never) == plain.points()
    memory = Space(small_sweep(machine=RATES, objective={"minimize": "peak_device_bytes"}))
    assert fastest_first(memory.points() or [], memory, never) == memory.points()


def test_of_many_points_only_the_first_are_simulated() -> None:
    asked: list[str] = []

    def ask(trial: TrialSpec) -> Estimate | NotSimulated:
        asked.append(trial.trial_id)
        return simulated(trial)

    axes = {"zero_stage": [0, 1], "reduce_bucket_size": [1000 * n for n in range(1, 31)]}
    space = Space(small_sweep(machine=RATES, axes=axes))
    points = space.points() or []
    ordered = fastest_first(points, space, ask)
    assert len(asked) == MOST == 40 < len(points)
    assert ordered[MOST:] == points[MOST:]
