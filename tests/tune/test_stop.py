"""Budgets as people write them, and the end of a search that gains no more."""

import time
from typing import Any

import pytest
from optuna.trial import FrozenTrial

from zbench.errors import UsageError
from zbench.spec.metrics import Direction
from zbench.spec.sweep import SearchSpec
from zbench.tune.space import Space
from zbench.tune.stop import Stopper, parse_budget, stopper_of

from .fakes import seen, small_sweep

ONE: tuple[Direction, ...] = ("maximize",)
TWO: tuple[Direction, ...] = ("maximize", "minimize")
SPACE = Space(small_sweep(axes={}))


def history(*values: float | tuple[float, ...] | None) -> list[FrozenTrial]:
    tuples = [(value,) if isinstance(value, float | int) else value or () for value in values]
    return [seen(SPACE, {}, *values, failed=not values) for values in tuples]


@pytest.mark.parametrize(
    ("text", "trials", "seconds"),
    [
        ("1_000 trials", 1000, None),
        ("90s", None, 90),
        ("40trials,20min", 40, 1200),
        ("20min|40trials", 40, 1200),
    ],
)
def test_a_budget_is_read(text: str, trials: int | None, seconds: float | None) -> None:
    assert parse_budget(text) == (trials, seconds)


NOTHING = ("0trials", "40trials,0s")
NO_BUDGET = ("", "40", "soon", "-3trials", "1s,2s", "infs")


@pytest.mark.parametrize("text", [*NOTHING, *NO_BUDGET])
def test_a_senseless_budget_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="expected a budget such as 40trials") as caught:
        parse_budget(text)
    assert ("a budget of nothing finds nothing" in str(caught.value)) == (text in NOTHING)


def test_a_budget_is_spent_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for begun, now, reason in (
        (2, 59.5, None),
        (3, 59.5, "the budget of 3 trials is spent"),
        (0, 60.0, "the budget of 60 s is spent"),
    ):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert Stopper(3, 60.0, ONE, None, 0.01, began=0.0).spent(begun) == reason


STEADY = (1.0, 2.0, 2.0, 2.01)
FRONT = ((1.0, 5.0), (2.0, 6.0))


@pytest.mark.parametrize(
    ("patience", "gain", "values", "is_flat"),
    [
        (2, 0.5, (1.0, 1.5, 1.0), True),
        (2, 0.5, (1.0, 1.6, 1.0), False),
        (3, 0.01, (*STEADY, 2.1), False),
        (None, 0.01, (1.0,) * 100, False),
        (2, 0.01, (None, None, None, None), False),
        (2, 0.01, (1.0, None, None), True),
        (2, 0.01, (*FRONT, (1.5, 5.5)), False),
        (2, 0.01, (*FRONT, (0.5, 6.0), (1.0, 7.0)), True),
    ],
)
def test_a_search_flattens_after_its_patience_without_a_gain(
    patience: int | None, gain: float, values: tuple[Any, ...], is_flat: bool
) -> None:
    """None: a trial that failed, which is one without gain, once anything worked. Pairs: of two objectives,
    where a wider front is a gain.
    """
    directions = TWO if values and isinstance(values[0], tuple) else ONE
    stopper = Stopper(None, None, directions, patience, gain)
    assert (stopper.flattened(history(*values)) is not None) == is_flat


def test_a_flattened_search_says_for_how_long_it_gained_nothing() -> None:
    stopper = Stopper(None, None, ONE, 3, 0.01)
    assert stopper.flattened(history(*STEADY, 1.5)) == "the last 3 trials brought no gain of 1.0%"


def test_a_grid_runs_to_its_end_a_search_has_patience() -> None:
    grid = stopper_of(SearchSpec(method="grid"), ONE, axes=3)
    assert (grid.trials, grid.seconds, grid.patience) == (None, None, None)
    assert stopper_of(SearchSpec(method="grid", trials=5), ONE, axes=3).trials == 5
    assert stopper_of(SearchSpec(method="tpe"), ONE, axes=6).patience == 30, "five for each axis"
    assert stopper_of(SearchSpec(method="tpe", patience=4), ONE, axes=6).patience == 4
