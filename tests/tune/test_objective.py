"""Scores: objectives only where every repeat finished, margins at most 0 exactly where a constraint holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.making import make_record
from zbench.record.record import Failure, Record
from zbench.record.summary import summarize
from zbench.spec.metrics import Direction
from zbench.spec.sweep import ObjectiveSpec
from zbench.tune.objective import Score, best_first, directions_of, relative, score
from zbench.tune.space import Space

from .fakes import seen, small_sweep


def scorer(objective: ObjectiveSpec) -> Callable[[Sequence[Record]], Score]:
    return lambda records: score(summarize(records)[0], objective)


def failed(outcome: str) -> Record:
    return make_record(outcome=outcome, timing=None, memory=None, error=Failure(outcome, "made so"))


BOUNDED = scorer(ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 200"}))


def test_a_feasible_record_has_its_value_and_no_positive_margin() -> None:
    found = BOUNDED([make_record()])
    assert found.values == (100.0,)
    assert found.miss == 0
    assert found.margins["peak_device_bytes <= 200 B"] == -0.5


def test_a_violated_bound_counts_by_its_share() -> None:
    found = BOUNDED([make_record(peak=300)])
    assert found.values == (100.0,)
    assert found.miss > 0
    assert found.miss == pytest.approx(0.5)


@pytest.mark.parametrize(("outcome", "margin"), [("oom", 1), ("timeout", 1), ("crashed", 2), ("invalid", 2)])
def test_a_trial_that_did_not_finish_misses_everything_and_has_no_value(outcome: str, margin: float) -> None:
    found = BOUNDED([make_record(), replace(failed(outcome), repeat=1)])
    assert found.values is None
    assert found.miss > 0
    assert found.margins["finished"] == margin


def test_a_trial_without_the_figure_of_its_objective_did_not_finish() -> None:
    found = scorer(ObjectiveSpec(minimize=["peak_device_bytes"]))([replace(make_record(), memory=None)])
    assert found.values is None
    assert found.margins["finished"] == 1


@pytest.mark.parametrize(
    ("verdict", "margin"),
    [("identical", -1), ("equivalent", 0), ("drifted", 1), ("wrong", 2), ("unchecked", 3)],
)
def test_only_equivalent_or_better_is_correct(verdict: str, margin: float) -> None:
    found = BOUNDED([make_record(verdict=verdict)])
    assert found.margins["correct"] == margin
    assert (found.miss == 0) == (margin <= 0)


def test_the_file_may_ask_for_a_better_verdict() -> None:
    scored = scorer(ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"verdict": ">= identical"}))
    assert scored([make_record(verdict="equivalent")]).miss == 1


def test_one_wrong_repeat_makes_the_trial_wrong() -> None:
    assert BOUNDED([make_record(), make_record(verdict="wrong", repeat=1)]).miss > 0


def test_a_strict_bound_that_is_met_exactly_is_missed() -> None:
    scored = scorer(ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "< 100"}))
    assert scored([make_record(peak=99)]).miss == 0
    assert 0 < scored([make_record(peak=100)]).miss < 1e-6, "anything that is really above is farther off"


def test_a_bound_that_is_met_exactly_is_met() -> None:
    found = BOUNDED([make_record(peak=200)])
    assert found.miss == 0
    assert found.margins["peak_device_bytes <= 200 B"] == 0


@pytest.mark.parametrize(
    ("difference", "of", "expected"), [(3.0, 4.0, 0.75), (3.0, -4.0, 0.75), (3.0, 0.0, 3.0)]
)
def test_a_share_of_nothing_is_the_difference_itself(difference: float, of: float, expected: float) -> None:
    assert relative(difference, of) == expected


def test_a_missing_figure_misses_its_bound() -> None:
    bare = replace(make_record(), memory=None)
    assert BOUNDED([bare]).miss == 1


def test_several_objectives_keep_their_order_and_directions() -> None:
    objective = ObjectiveSpec(maximize=["tokens_per_s"], minimize=["peak_device_bytes"])
    assert directions_of(objective) == ("maximize", "minimize")
    assert scorer(objective)([make_record(rate=5.0, peak=7)]).values == (5.0, 7.0)


@pytest.mark.parametrize(("direction", "order"), [("maximize", [3, 4, 2]), ("minimize", [2, 3, 4])])
def test_feasible_points_come_by_their_first_objective(direction: Direction, order: list[int]) -> None:
    space = Space(small_sweep())
    points = space.points() or []
    trials = [
        seen(space, points[0]),
        seen(space, points[1], failed=True),
        seen(space, points[2], 1.0, 9.0, peak=0.0),
        seen(space, points[3], 3.0, 7.0, peak=-0.5),
        seen(space, points[4], 3.0, 8.0),
        seen(space, points[5], 5.0, 5.0, peak=0.5),
    ]
    ordered = best_first(trials, (direction, "minimize"))
    assert [trial.user_attrs["point"] for trial in ordered] == [points[index] for index in order]
    assert best_first(trials[:2], (direction,)) == []
