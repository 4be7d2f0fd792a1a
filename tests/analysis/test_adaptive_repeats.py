"""How often configurations are repeated, and how long that takes."""

import pytest

from zbench.analysis.adaptive_repeats import contenders, open_question
from zbench.analysis.ranking import Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import summarize

from .test_ranking import FASTEST, noisy, sweep

ASKED = {"separate": 0.05, "max_repeats": 5}
EQUALS_AND_A_SLOW_ONE = [0.1, 0.1, 0.3]


def measured(rounds: int, **run: object) -> list[Record]:
    """Return the records of two equals, `tn0` and `tn1`, and a slow one after so many rounds."""
    steps = noisy(EQUALS_AND_A_SLOW_ONE, rounds, 0.04, 1)
    return sweep(steps, **run)


def test_after_one_round_everyone_is_repeated() -> None:
    assert contenders(measured(1, **ASKED), FASTEST) == {"tn0", "tn1", "tn2"}


def test_then_the_leaders_are_repeated_and_the_rest_is_not() -> None:
    asked = ASKED | {"separate": 0.01}
    assert contenders(measured(2, **asked), FASTEST) == {"tn0", "tn1"}
    assert contenders(measured(4, **asked), FASTEST) == {"tn0", "tn1"}
    assert contenders(measured(5, **asked), FASTEST) == frozenset(), "max_repeats"


def test_without_separate_nothing_is_repeated_and_no_question_is_open() -> None:
    for rounds in (1, 3):
        records = measured(rounds)
        assert contenders(records, FASTEST) == frozenset()
        assert open_question(summarize(records), rank(summarize(records), FASTEST)) is None


@pytest.mark.parametrize(
    ("within", "says"), [(0.125, "may differ by up to 12.5%"), (None, "an unknown share")]
)
def test_an_open_question_says_by_how_much_leaders_may_differ(within: float | None, says: str) -> None:
    summaries = summarize(measured(5, **ASKED))
    leaders = ("tn0", "tn1")
    bounds = {} if within is None else dict.fromkeys(leaders, within)
    question = open_question(summaries, Ranking(None, leaders, "tn0", {}, bounds))
    assert question is not None
    assert "the 2 leaders" in question
    assert says in question
    assert "more than the 5.0% of run.separate" in question
