"""The evidence of pairs and of stored runs against scipy, and by its stated properties."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from zbench.analysis.decision import holm
from zbench.analysis.evidence import of_blocks, of_runs, share_followed
from zbench.analysis.paired import (
    BASE_FIRST,
    HEAD_FIRST,
    base_at_either_end,
    block_cells,
    block_differences,
    block_orders,
)

from .synthetic import blocks_of, pairs

LOGS = st.lists(st.floats(-0.5, 0.5).map(lambda x: round(x, 4)), min_size=2, max_size=9)


@given(LOGS, st.floats(-0.5, 0.5))
def test_pairs_in_turns_are_tested_by_the_one_sample_t(values: list[float], margin: float) -> None:
    contrast = of_blocks(pairs(values)).contrast
    if np.std(values) < 1e-6:
        return
    reference = scipy.stats.ttest_1samp(values, margin, alternative="greater")
    interval = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert contrast.p_above(margin) == pytest.approx(reference.pvalue)
    assert contrast.interval(0.025) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("order", [BASE_FIRST, HEAD_FIRST])
def test_a_linear_drift_cancels_within_a_block(order: tuple) -> None:
    cells = block_cells(0, order, [0.1 * 1.1**i for i in range(4)])
    assert block_differences(cells) == pytest.approx((0.0,))


def test_each_pair_of_a_block_is_a_degree_of_freedom() -> None:
    evidence = of_blocks(blocks_of(np.random.default_rng(0).normal(0, 0.02, (100, 4))))
    assert evidence.contrast.degrees == pytest.approx(2 * 100 - 1)
    assert evidence.contrast.error == pytest.approx(0.02 / math.sqrt(100), rel=0.1)
    assert (evidence.n_base, evidence.n_head, evidence.paired) == (100, 100, True)


def test_what_moves_from_pair_to_pair_is_in_no_error() -> None:
    rng = np.random.default_rng(1)
    quiet = rng.normal(0, 0.01, (8, 4))
    moved = quiet + np.repeat(rng.normal(0, 0.2, (8, 2)), 2, axis=1)
    still, moving = (of_blocks(blocks_of(logs)).contrast for logs in (quiet, moved))
    assert (moving.value, moving.error) == pytest.approx((still.value, still.error))


def test_blocks_show_the_difference_and_base_at_either_end() -> None:
    logs = np.random.default_rng(2).normal(0, 0.02, (8, 4))
    cells = blocks_of(logs, head=0.05)
    heads = np.array([[side == "head" for side in order] for order in block_orders(8, 0)])
    expected = (np.where(heads, logs, -logs).sum(axis=1) / 2 + 0.05).tolist()
    assert block_differences(cells) == pytest.approx(expected)
    first, last = base_at_either_end(cells)
    assert (len(first), len(last)) == (4, 4)
    assert first[:2] == pytest.approx(logs[0][~heads[0]])
    assert last[-2:] == pytest.approx(logs[7][~heads[7]])


@pytest.mark.parametrize(("spread", "nominal"), [((1.0, 1.0), 0.01), ((1.0, 0.05), 0.02)])
def test_runs_of_unlike_noise_are_held_to_the_noisier_one(
    spread: tuple[float, float], nominal: float
) -> None:
    """Of 4,000 pairs of equals, five repeats a side: the nominal level, at unlike noise twice that."""
    draws = np.random.default_rng(3).normal(0, 1, (4000, 2, 5)) * np.array(spread)[:, None]
    called = sum(of_runs(base, head, 0.0).contrast.p_above(0.0) <= 0.01 for base, head in draws)
    assert called / 4000 <= nominal


def test_what_lies_between_runs_is_added_as_known() -> None:
    rng = np.random.default_rng(4)
    base, head = rng.normal(0, 0.02, (2, 6))
    plain, shifted = of_runs(base, head, 0.0), of_runs(base, head, 0.02)
    assert shifted.floor == pytest.approx(math.sqrt(2) * 0.02)
    assert shifted.contrast.error == pytest.approx(math.hypot(plain.contrast.error, shifted.floor))
    assert plain.contrast.degrees == pytest.approx(10)
    assert shifted.contrast.degrees > 11
    assert of_runs([0.25] * 3, [0.5] * 4).contrast.degrees == 1e6, "all of the error is known"


def test_one_process_a_side_says_nothing_of_the_spread() -> None:
    contrast = of_runs([0.0], [0.1]).contrast
    assert contrast.interval(0.01) == (-math.inf, math.inf)
    assert contrast.p_above(0.0) == 1.0


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_share_followed_is_the_upper_bound_of_a_slope_of_least_squares(noise: float) -> None:
    rng = np.random.default_rng(2)
    part = rng.normal(0, 0.2, (2, 6))
    times = 0.4 * part + rng.normal(0, noise, (2, 6))
    of_run = np.repeat(np.eye(2), 6, axis=0)
    design = np.column_stack([part.ravel(), of_run])
    slope, *_ = np.linalg.lstsq(design, times.ravel(), rcond=None)[0]
    rest = times.ravel() - design @ np.linalg.lstsq(design, times.ravel(), rcond=None)[0]
    error = math.sqrt(rest @ rest / 9 * np.linalg.inv(design.T @ design)[0, 0])
    bound = slope + error * scipy.stats.t.isf(0.05, 9)
    assert 0.3 < bound < 0.9
    assert share_followed((times[0], times[1]), (part[0], part[1])) == pytest.approx(bound)


def test_values_that_are_all_equal_say_all_or_nothing() -> None:
    contrast = of_blocks(pairs([0.1] * 4)).contrast
    assert contrast.p_above(0.099) < 1e-9
    assert contrast.p_above(0.101) > 1 - 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down(p_values: list[float]) -> None:
    adjusted = holm(dict(enumerate(p_values)))  # type: ignore[arg-type]
    order = np.argsort(p_values, kind="stable")
    expected = np.maximum.accumulate(
        [min(1.0, (len(p_values) - r) * p_values[i]) for r, i in enumerate(order)]
    )
    assert [adjusted[i] for i in order] == pytest.approx(list(expected))  # type: ignore[index]
