"""Estimates against scipy, and by their stated properties."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from zbench.analysis import statistics as zs

logs = st.floats(-0.5, 0.5).map(lambda x: round(x, 4))
some_logs = st.lists(logs, min_size=2, max_size=9)


@given(some_logs, logs)
def test_paired_estimate_is_the_one_sample_t(values: list[float], margin: float) -> None:
    estimate = zs.paired_estimate(values)
    if np.std(values) < 1e-9:
        assert estimate.p_above(margin) in (0.0, 1.0) or estimate.standard_error < 1e-6
        return
    reference = scipy.stats.ttest_1samp(values, margin, alternative="greater")
    interval = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate.p_above(margin) == pytest.approx(reference.pvalue)
    assert estimate.interval(0.025) == pytest.approx((interval.low, interval.high))


@given(some_logs, some_logs)
def test_unpaired_estimate_is_welchs(base: list[float], head: list[float]) -> None:
    if min(np.std(base), np.std(head)) < 1e-9:
        return
    reference = scipy.stats.ttest_ind(head, base, equal_var=False, alternative="greater")
    estimate = zs.unpaired_estimate(base, head)
    assert estimate.p_above(0.0) == pytest.approx(reference.pvalue)
    assert estimate.degrees == pytest.approx(reference.df)


def test_samples_without_spread_have_the_degrees_of_a_pooled_estimate() -> None:
    found = zs.unpaired_estimate([0.25] * 3, [0.5] * 4)
    assert (found.log_ratio, found.standard_error, found.degrees) == (0.25, 0.0, 5.0)


def test_run_noise_widens_and_never_vanishes() -> None:
    base, head = [0.0, 0.01] * 50, [0.05, 0.06] * 50
    plain, noisy = zs.unpaired_estimate(base, head), zs.unpaired_estimate(base, head, run_noise=0.02)
    assert noisy.standard_error == pytest.approx(math.hypot(plain.standard_error, math.sqrt(2) * 0.02))
    assert noisy.standard_error > noisy.floor == pytest.approx(math.sqrt(2) * 0.02)


def test_one_process_says_nothing_of_the_spread() -> None:
    for estimate in (
        zs.paired_estimate([0.1]),
        zs.unpaired_estimate([0.0], [0.1]),
        zs.unpaired_estimate([0.0, 0.1], [0.1]),
    ):
        assert estimate.interval(0.01) == (-math.inf, math.inf)
        assert estimate.p_above(0.0) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down(p_values: list[float]) -> None:
    adjusted = zs.holm(p_values)
    order = np.argsort(p_values, kind="stable")
    expected = np.maximum.accumulate(
        [min(1.0, (len(p_values) - r) * p_values[i]) for r, i in enumerate(order)]
    )
    assert [adjusted[i] for i in order] == pytest.approx(list(expected))


def test_the_spread_within_blocks_counts_where_it_is_alike() -> None:
    rng = np.random.default_rng(0)
    differences, within = rng.normal(0, 0.02, 12), rng.normal(0, 0.02 * math.sqrt(2), 24)
    alone, pooled = zs.paired_estimate(differences), zs.paired_estimate(differences, within)
    assert (alone.degrees, pooled.degrees) == (11, 35)
    assert pooled.standard_error == pytest.approx(0.02 / math.sqrt(12), rel=0.3)
    squares = 11 * differences.var(ddof=1) + np.square(within).sum() / 2
    assert pooled.standard_error == pytest.approx(math.sqrt(squares / 35 / 12))
    assert zs.paired_estimate(differences, [0.0] * 24) == alone, "no clock is as fine as that"
    for factor in (0.1, 10):  # the effect varies from block to block; the machine drifts within blocks
        assert zs.paired_estimate(differences, factor * within) == alone


def test_values_that_are_all_equal_say_all_or_nothing() -> None:
    assert zs.paired_estimate([0.1] * 4).p_above(0.0) == 0.0
    assert [zs.paired_estimate([0.1] * 4).p_above(margin) for margin in (0.1, 0.2)] == [1.0] * 2
