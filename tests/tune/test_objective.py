"""Scores: objectives only where every repeat finished, margins at most 0 exactly where a constraint holds."""

from dataclasses import replace

import pytest

from tests.making import make_record
from zbench.record.record import Failure, Record, Timing
from zbench.spec.sweep import ObjectiveSpec
from zbench.tune.objective import Scorer, share


def failed(outcome: str) -> Record:
    return make_record(outcome=outcome, timing=None, memory=None, error=Failure(outcome, "made so"))


BOUNDED = Scorer(ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 200"}))


def test_a_feasible_record_has_its_value_and_no_positive_margin() -> None:
    score = BOUNDED.score([make_record()])
    assert score.values == (100.0,)
    assert score.feasible
    assert score.miss == 0
    assert score.margins["peak_device_bytes <= 200 B"] == -0.5


def test_a_violated_bound_counts_by_its_share() -> None:
    score = BOUNDED.score([make_record(peak=300)])
    assert score.values == (100.0,)
    assert not score.feasible
    assert score.miss == pytest.approx(0.5)


@pytest.mark.parametrize(("outcome", "margin"), [("oom", 1), ("timeout", 1), ("crashed", 2), ("invalid", 2)])
def test_a_trial_that_did_not_finish_misses_everything_and_has_no_value(outcome: str, margin: float) -> None:
    score = BOUNDED.score([make_record(), replace(failed(outcome), repeat=1)])
    assert score.values is None
    assert not score.feasible
    assert score.margins["finished"] == margin


def test_a_trial_without_the_figure_of_its_objective_did_not_finish() -> None:
    score = Scorer(ObjectiveSpec(minimize=["peak_device_bytes"])).score([replace(make_record(), memory=None)])
    assert score.values is None
    assert score.margins["finished"] == 1


@pytest.mark.parametrize(
    ("verdict", "margin"),
    [("identical", -1), ("equivalent", 0), ("drifted", 1), ("wrong", 2), ("unchecked", 3)],
)
def test_only_equivalent_or_better_is_correct(verdict: str, margin: float) -> None:
    score = BOUNDED.score([make_record(verdict=verdict)])
    assert score.margins["correct"] == margin
    assert score.feasible == (margin <= 0)


def test_the_file_may_ask_for_a_better_verdict() -> None:
    scorer = Scorer(ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"verdict": ">= identical"}))
    assert scorer.score([make_record(verdict="equivalent")]).miss == 1


def test_one_wrong_repeat_makes_the_trial_wrong() -> None:
    assert not BOUNDED.score([make_record(), make_record(verdict="wrong", repeat=1)]).feasible


def test_a_strict_bound_that_is_met_exactly_is_missed() -> None:
    scorer = Scorer(ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "< 100"}))
    assert not scorer.score([make_record(peak=100)]).feasible
    assert scorer.score([make_record(peak=99)]).feasible
    assert scorer.score([make_record(peak=100)]).miss < 1e-6, "anything that is really above is farther off"


def test_a_bound_that_is_met_exactly_is_met() -> None:
    score = BOUNDED.score([make_record(peak=200)])
    assert score.feasible
    assert score.margins["peak_device_bytes <= 200 B"] == 0


@pytest.mark.parametrize(
    ("difference", "of", "expected"), [(3.0, 4.0, 0.75), (3.0, -4.0, 0.75), (3.0, 0.0, 3.0)]
)
def test_a_share_of_nothing_is_the_difference_itself(difference: float, of: float, expected: float) -> None:
    assert share(difference, of) == expected


def test_a_missing_figure_misses_its_bound() -> None:
    bare = replace(make_record(), memory=None)
    assert BOUNDED.score([bare]).miss == 1


def test_several_objectives_keep_their_order_and_directions() -> None:
    scorer = Scorer(ObjectiveSpec(maximize=["tokens_per_s"], minimize=["peak_device_bytes"]))
    assert scorer.directions == ("maximize", "minimize")
    assert scorer.score([make_record(rate=5.0, peak=7)]).values == (5.0, 7.0)


def test_gain_is_a_share_in_the_direction_of_the_objective() -> None:
    up, down = BOUNDED, Scorer(ObjectiveSpec(minimize=["median_step_s"]))
    assert up.gain(up.score([make_record(rate=110.0)]), up.score([make_record(rate=100.0)])) == pytest.approx(
        0.1
    )
    slow, fast = replace(make_record(), timing=Timing([0.02], 0.02, 1, 1)), make_record()
    assert down.gain(down.score([fast]), down.score([slow])) == pytest.approx(0.5)
