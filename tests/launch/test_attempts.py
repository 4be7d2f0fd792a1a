"""What runs once more: what was killed from outside, and what was measured on a disturbed machine."""

from pathlib import Path

import pytest

from zbench.launch.attempts import Retries, record_of
from zbench.launch.executor import Attempt, ReferenceTask, RepeatTask
from zbench.record.record import OTHER_LOAD, Disturbance, Failure

from .conftest import make_trial

TASK = RepeatTask(make_trial())
KILLED = Attempt("crashed", Failure("killed", "rank 1 was killed"), seconds=1.0)
CRASHED = Attempt("crashed", Failure("crashed", "it fell over"), seconds=1.0)


def measured(severity: float = 0.0) -> Attempt:
    return Attempt("ok", disturbance=Disturbance(OTHER_LOAD * severity), seconds=1.0)


def retries(told: list[str] | None = None, *, rerun_disturbed: bool = True) -> Retries:
    return Retries(rerun_disturbed=rerun_disturbed, tell=[].append if told is None else told.append)


def settle(of: Retries, *ends: Attempt, task: RepeatTask = TASK) -> Attempt:
    """Return how a task ended whose runs end like this: all but the last run once more."""
    *others, last = [of.settled(task, end, took_turns=False) for end in ends]
    assert others == [None] * len(others)
    assert last is not None
    return last


def test_what_was_killed_runs_once_more_and_its_seconds_count() -> None:
    told: list[str] = []
    of = retries(told)
    for _ in range(2):  # the second time as if it were another task
        last = settle(of, KILLED, KILLED)
        assert (last.error, last.seconds) == (KILLED.error, 2.0)
    assert told == ["rank 1 was killed; running it again"] * 2
    assert settle(of, KILLED, CRASHED).error == CRASHED.error


@pytest.mark.parametrize(("first", "second", "better"), [(4.0, 2.0, 2.0), (2.0, 4.0, 2.0)])
def test_a_disturbed_repeat_is_measured_again_and_the_better_counts(
    first: float, second: float, better: float
) -> None:
    last = settle(retries(), measured(first), measured(second))
    assert (last.severity, last.seconds) == (better, 2.0)


def test_a_measurement_stands_though_its_second_run_fails() -> None:
    assert settle(retries(), measured(2.0), CRASHED).outcome == "ok"
    last = settle(retries(), KILLED, measured(2.0), KILLED, measured())
    assert (last.severity, last.seconds) == (0.0, 4.0)


def test_what_is_not_worth_another_measurement() -> None:
    of = retries()
    assert settle(of, measured(1.0)).severity == 1.0
    assert settle(of, CRASHED) == CRASHED
    assert of.settled(TASK, measured(2.0), took_turns=True) == measured(2.0), "the others were disturbed, too"
    reference = ReferenceTask(make_trial(), Path("reference"))
    assert of.settled(reference, measured(2.0), took_turns=False) == measured(2.0)
    assert settle(retries(rerun_disturbed=False), measured(2.0)).severity == 2.0


def test_three_repeats_disturbed_twice_are_the_last_to_run_again() -> None:
    of = retries()
    twice = measured(2.0), measured(2.0)
    for _ in range(2):
        settle(of, *twice)
    settle(of, measured(2.0), measured(1.0))  # the load has gone
    for repeat in range(3):
        settle(of, *twice, task=RepeatTask(make_trial(), repeat))
    assert settle(of, measured(2.0)).severity == 2.0


def test_a_record_has_what_disturbed_a_measurement_and_nothing_of_a_failure() -> None:
    good = record_of("run", TASK, measured(2.0), None)
    assert (good.disturbance, good.elapsed_s) == (Disturbance(OTHER_LOAD * 2), 1.0)
    failed = Attempt("crashed", CRASHED.error, disturbance=Disturbance(1.0))
    assert record_of("run", TASK, failed, None).disturbance is None
