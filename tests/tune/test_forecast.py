"""Trials that the simulation leaves out, and trials that are pruned."""

from dataclasses import replace

import pytest

from tests.making import make_trial
from zbench.estimate.result import Estimate, NotSimulated, Reserved
from zbench.job.progress import Watch
from zbench.launch.disturbance import LoadBesides
from zbench.record.record import Disturbance
from zbench.spec.metrics import Goal
from zbench.spec.trial import TrialSpec
from zbench.tune.forecast import MemoryLimits, pruner, too_large
from zbench.tune.space import Space

from .fakes import estimated, small_sweep

TRIAL = make_trial({"zero_stage": 1})


LIMITS = MemoryLimits(reserved=1000)


def reserving(least: int) -> Estimate:
    """Return an estimate of a step that holds 900 bytes on a card."""
    return replace(estimated(900), reserved=Reserved(1200, least, expandable_segments=False))


@pytest.mark.parametrize("engine", ["builtin", "deepspeed"])
def test_an_inexact_estimate_leaves_a_tenth_of_room(engine: str) -> None:
    device = "auto" if engine == "builtin" else "cpu"
    trial = make_trial({"engine": engine, "zero_stage": 1}, device=device)
    for peak, fits in ((1100, True), (1101, False)):
        assert (too_large(lambda _, peak=peak: estimated(peak), trial, LIMITS) is None) == fits


def test_on_a_card_the_least_reserved_memory_meets_the_limit() -> None:
    trial = make_trial({"zero_stage": 1}, device="cuda")
    assert too_large(lambda _: reserving(1000), trial, LIMITS) is None
    assert too_large(lambda _: reserving(1001), trial, LIMITS) is not None
    assert too_large(lambda _: reserving(1001), trial, MemoryLimits(allocated=900)) is None


def test_a_trial_left_out_is_told_with_its_needs() -> None:
    reason = "needs 1001 B by the simulation, the limit is 1000 B"
    exact = make_trial(device="cpu")
    for limits in (LIMITS, MemoryLimits(allocated=1000)):
        assert too_large(lambda _: estimated(1001), exact, limits) == reason
        assert too_large(lambda _: estimated(1000), exact, limits) is None
        assert too_large(lambda _: NotSimulated("compiled"), TRIAL, limits) is None, "it may fit"


RATE = (Goal("tokens_per_s", "maximize"),)


def watch_of(rate: float = 1.0) -> Watch:
    """Return the watch beside a best trial whose steps take a second."""
    watch = pruner(trial(), (Goal("median_step_s", "minimize"),), rate, 2.0)
    assert watch is not None
    return watch


def trial(workload: dict[str, object] | None = None, **engine: object) -> TrialSpec:
    shape = {"model": "mlp", **(workload or {})}
    sweep = small_sweep(workload=shape, axes={"zero_stage": [0]}, engine=engine)
    spec = Space(sweep).trial({"zero_stage": 0})
    assert isinstance(spec, TrialSpec)
    return spec


def line(step: int, seconds: float, phase: str = "timed") -> dict[str, object]:
    return {"phase": phase, "step": step, "steps": 8, "seconds": seconds}


def test_a_slow_trial_ends_after_a_quarter_of_its_steps() -> None:
    watch = watch_of()
    assert watch(line(1, 9.0)) is None, "one step proves nothing"
    assert watch(line(2, 3.0)) == "pruned after 2 of 8 steps: 3.0 times slower than the best so far"
    watch = watch_of()
    ended = [watch({**line(step, 9.0), "steps": 16}) is not None for step in (1, 2, 3, 4)]
    assert ended == [False, False, False, True]


@pytest.mark.parametrize(
    "lines",
    [
        [line(2, 1.99)],
        [line(1, 1.9), *(line(step, 50.0) for step in range(2, 9))],
        [line(step, 50.0, "warmup") for step in range(1, 9)],
        [{**line(2, 50.0), "steps": 2}],
    ],
    ids=["just fast enough", "one fast step", "warm-up", "the last step"],
)
def test_a_trial_goes_on_that_is_not_surely_slow(lines: list[dict[str, object]]) -> None:
    watch = watch_of()
    assert [watch(one) for one in lines] == [None] * len(lines)
    assert watch_of()(line(2, 2.0)) is not None, "just so many times slower"


class Loaded(LoadBesides):
    """A machine on which others take half of the CPU time."""

    def disturbance(self) -> Disturbance:
        return Disturbance(0.5)


def test_no_trial_ends_while_others_take_cpu_time_from_it() -> None:
    watch = pruner(trial(), (Goal("median_step_s", "minimize"),), 1.0, 2.0, Loaded(2))
    assert watch is not None
    assert [watch(line(step, 50.0)) for step in range(1, 9)] == [None] * 8


@pytest.mark.parametrize(
    ("goals", "rate", "factor"),
    [(RATE, 0.0, 2.0), (RATE, 5.0, None), ((*RATE, Goal("peak_device_bytes", "minimize")), 5.0, 2.0)],
)
def test_nothing_is_pruned_without_a_measure(
    goals: tuple[Goal, ...], rate: float, factor: float | None
) -> None:
    assert pruner(trial(), goals, rate, factor) is None
