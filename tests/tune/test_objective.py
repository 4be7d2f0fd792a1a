"""Scores: objectives only where every repeat finished, margins at most 0 exactly where a constraint holds."""

from typing import Any

import pytest

from tests.making import make_record
from zbench.record.record import Failure, Record, VerdictName
from zbench.record.summary import summarize
from zbench.spec.sweep import ObjectiveSpec
from zbench.tune.objective import Score, directions_of, score


def scored(*records: Record, **objective: Any) -> Score:
    """Return the score of these repeats in a search for tokens per second within 200 bytes."""
    usual: dict[str, Any] = {"maximize": ["tokens_per_s"], "subject_to": {"peak_device_bytes": "<= 200"}}
    return score(summarize(records)[0], ObjectiveSpec(**(usual | objective)))


@pytest.mark.parametrize(
    ("record", "bound", "margin"),
    [
        ({"peak": 200}, "<= 200", 0.0),
        ({"peak": 300}, "<= 200", 0.5),
        ({"memory": None}, "<= 200", 1.0),
        ({"peak": 100}, "< 100", 1e-9),
    ],
    ids=["met exactly", "missed", "no figure", "touched"],
)
def test_a_margin_is_the_share_missed_of_its_bound(record: dict[str, Any], bound: str, margin: float) -> None:
    result = scored(make_record(**record), subject_to={"peak_device_bytes": bound})
    assert result.values == (100.0,)
    assert result.margins[f"peak_device_bytes {bound} B"] == pytest.approx(margin, rel=1e-6)
    assert result.miss == pytest.approx(max(0.0, margin), rel=1e-6)


@pytest.mark.parametrize(("outcome", "margin"), [("oom", 1), ("crashed", 2)])
def test_an_unfinished_trial_misses_every_bound_and_has_no_value(outcome: str, margin: float) -> None:
    error = Failure(outcome, "made so")
    failed = make_record(repeat=1, outcome=outcome, timing=None, memory=None, error=error)
    result = scored(make_record(), failed)
    assert result.values is None
    assert result.miss > 0
    assert result.margins["finished"] == margin


def test_a_trial_without_its_objectives_figure_did_not_finish() -> None:
    result = scored(make_record(memory=None), maximize=[], minimize=["peak_device_bytes"])
    assert (result.values, result.margins["finished"]) == (None, 1)


@pytest.mark.parametrize(
    ("verdict", "margin"),
    [("equivalent", 0), ("drifted", 1), ("unchecked", 3)],
)
def test_only_equivalent_or_better_in_every_repeat_is_correct(verdict: VerdictName, margin: float) -> None:
    result = scored(make_record(), make_record(repeat=1, verdict=verdict))
    assert result.margins["correct"] == margin
    assert result.miss == max(0, margin)


def test_the_file_may_ask_for_a_better_verdict() -> None:
    assert scored(make_record(verdict="equivalent"), subject_to={"verdict": ">= identical"}).miss == 1


def test_several_objectives_keep_their_order_and_directions() -> None:
    result = scored(make_record(rate=5.0, peak=7), minimize=["peak_device_bytes"])
    assert result.values == (5.0, 7.0)
    both = ObjectiveSpec(maximize=["tokens_per_s"], minimize=["peak_device_bytes"])
    assert directions_of(both) == ("maximize", "minimize")
