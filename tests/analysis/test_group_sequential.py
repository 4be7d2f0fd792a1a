"""Boundaries of looking several times, held against simulated walks."""

import numpy as np
import pytest
from scipy.stats import norm

from zbench.analysis.group_sequential import nominal_levels
from zbench.analysis.ranking import rank
from zbench.record.summary import summarize

from .test_ranking import FASTEST, noisy, sweep


def test_looks_spend_the_cube_of_the_share_of_the_data() -> None:
    """A million random walks, stopped at the first look whose level they pass."""
    levels = nominal_levels((1, 2, 3, 4, 5), 0.025)
    walks = np.random.default_rng(0).normal(size=(1_000_000, 5)).cumsum(axis=1)
    passed = walks / np.sqrt(np.arange(1, 6)) > [-norm.ppf(level) for level in levels]
    first = np.where(passed.any(axis=1), passed.argmax(axis=1), 5)
    spent = (np.bincount(first, minlength=6)[:5] / 1e6).cumsum()
    assert spent.tolist() == pytest.approx([0.025 * (look / 5) ** 3 for look in range(1, 6)], rel=0.1)


def test_looks_of_a_repeating_sweep_share_the_level() -> None:
    steps = noisy([0.1, 0.103], 4, 0.01, 2)
    at_most = [
        rank(summarize(sweep(steps, **run)), FASTEST).at_most["tn1"]
        for run in ({}, {"separate": None, "max_repeats": 20}, {"separate": 0.05, "max_repeats": 4},
                    {"separate": 0.05, "max_repeats": 40})
    ]  # fmt: skip
    assert at_most[0] == at_most[1] <= at_most[2] < at_most[3]
