"""Estimates and exact tests against scipy, against enumeration, and by their stated properties."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
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


@given(st.lists(logs, min_size=1, max_size=9), logs)
@example([0.1, 0.2, 0.3], 0.0)  # whose sum is another in another order
def test_sign_flip_equals_enumeration(values: list[float], margin: float) -> None:
    shifted = [value - margin for value in values]
    observed = sum(shifted) - 1e-12
    signs = itertools.product((-1, 1), repeat=len(values))
    share = np.mean(
        [sum(s * v for s, v in zip(pattern, shifted, strict=True)) >= observed for pattern in signs]
    )
    assert zs.sign_flip_p(values, margin) == pytest.approx(share)


def test_sign_flip_stays_exact_for_many_pairs() -> None:
    assert zs.sign_flip_p([0.05] * 30) == 2.0**-30
    assert zs.sign_flip_p(list(np.random.default_rng(0).normal(0.02, 0.02, 40))) < 1e-4
    with pytest.raises(ValueError, match="at most 40 pairs, got 41"):
        zs.sign_flip_p([0.1] * 41)


@given(st.integers(1, 7), st.integers(1, 7), st.randoms(use_true_random=False))
def test_rank_test_is_scipys_exact_mann_whitney(n_base: int, n_head: int, random: object) -> None:
    values = list(range(n_base + n_head))
    random.shuffle(values)  # type: ignore[attr-defined]
    base, head = [float(v) for v in values[:n_base]], [float(v) for v in values[n_base:]]
    reference = scipy.stats.mannwhitneyu(head, base, alternative="greater", method="exact")
    assert zs.rank_sum_p(base, head) == pytest.approx(reference.pvalue)


def test_ties_never_raise_an_alarm() -> None:
    assert zs.rank_sum_p([0.0] * 8, [0.0] * 8) == 1.0
    assert zs.rank_sum_p([0.0] * 8, [0.03] * 8, margin=0.03) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down(p_values: list[float]) -> None:
    adjusted = zs.holm(p_values)
    order = np.argsort(p_values, kind="stable")
    expected = np.maximum.accumulate(
        [min(1.0, (len(p_values) - r) * p_values[i]) for r, i in enumerate(order)]
    )
    assert [adjusted[i] for i in order] == pytest.approx(list(expected))


def test_smallest_sample_sizes_are_those_that_can_reach_alpha() -> None:
    assert [zs.minimal_pairs(alpha) for alpha in (0.05, 0.01, 0.001)] == [5, 7, 10]
    assert zs.minimal_pairs(2**-7) == 7
    assert [zs.minimal_repeats(alpha) for alpha in (0.2, 1 / 6, 0.05)] == [2, 2, 3]
    assert zs.ranks_can_reach(2, 2, 1 / 6)
    assert not zs.ranks_can_reach(1, 9, 0.2), "one process shows no spread"
    assert zs.can_reach(zs.unpaired_estimate([0.0, 0.1], [0.0, 0.1]), 0.2)
    for alpha in (0.05, 0.01, 0.001):
        n, k = zs.minimal_pairs(alpha), zs.minimal_repeats(alpha)
        assert zs.sign_flip_p([0.1] * n) <= alpha < zs.sign_flip_p([0.1] * (n - 1))
        assert zs.rank_sum_p([0.0] * k, [0.1] * k) <= alpha
        assert k == 2 or zs.rank_sum_p([0.0] * (k - 1), [0.1] * (k - 1)) > alpha
        assert zs.can_reach(zs.unpaired_estimate([0.0, 0.1] * k, [0.0, 0.1] * k), alpha)
        assert zs.can_reach(zs.paired_estimate([0.1] * n), alpha)
        assert not zs.can_reach(zs.paired_estimate([0.1] * (n - 1)), alpha)


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


def test_the_pooled_spread_weighs_groups_by_their_sizes() -> None:
    base, head = [0.0, 0.1, 0.5], [1.0, 1.3, 0.9, 1.1, 2.0]
    left = [x - np.mean(group) for group in (base, head) for x in group]
    assert zs.pooled_spread(base, head) == pytest.approx(math.sqrt(np.square(left).sum() / 6))
    assert zs.pooled_spread([0.0, 0.2], [1.0, 1.2]) == pytest.approx(0.2 / math.sqrt(2))
    assert zs.pooled_spread([1.0], head) == zs.pooled_spread(base, [1.0]) == math.inf
