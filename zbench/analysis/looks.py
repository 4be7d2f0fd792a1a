"""The level of each look at a sweep that repeats until its leaders are apart (`run.separate`). Pure."""

from collections.abc import Mapping
from functools import cache
from typing import Any

FIRST_LOOK = 3
"""Rounds before the first look: with fewer the spread is not known."""


def level_of_looks(config: Mapping[str, Any], alpha: float) -> float:
    """Return the level of a configuration's last look: `alpha` itself where a sweep looks but once.

    A sweep with `run.separate` looks after every round up to `max_repeats`. All its looks have one level, so
    that a table printed later says what the sweep decided.
    """
    run = config.get("run") or {}
    if run.get("separate") is None:
        return alpha
    return constant_level(max(int(run.get("max_repeats") or FIRST_LOOK), FIRST_LOOK), alpha)


@cache
def constant_level(most: int, alpha: float) -> float:
    """Return the one-sided level that, used at each look from 3 to `most` rounds, errs with `alpha` in all.

    Pocock's boundary ("Group sequential methods in the design and analysis of clinical trials", Biometrika
    64, 1977), found by bisection on the chance of passing it at any look.
    """
    from zbench.analysis.sequential import chance_of_crossing  # imports scipy, which one look does not need

    looks = tuple(range(FIRST_LOOK, most + 1))
    low, high = alpha / len(looks), alpha
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if chance_of_crossing(looks, middle) > alpha else (middle, high)
    return low
