"""The evidence of pairs and of stored runs against scipy, and by its stated properties."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from zbench.analysis.decision import holm
from zbench.analysis.evidence import of_blocks, of_runs
from zbench.analysis.paired import (
    BASE_FIRST,
    HEAD_FIRST,
    block_cells,
    block_differences,
)

from .synthetic import pairs

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


@pytest.mark.check
@pytest.mark.parametrize(
    ("spread", "nominal"), [pytest.param((1.0, 1.0), 0.01, marks=pytest.mark.check), ((1.0, 0.05), 0.02)]
)
def test_runs_of_unlike_noise_are_held_to_the_noisier_one(
    spread: tuple[float, float], nominal: float
) -> None:
    """Of 4,000 pairs of equals, five repeats a side: the nominal level, at unlike noise twice that."""
    draws = np.random.default_rng(3).normal(0, 1, (4000, 2, 5)) * np.array(spread)[:, None]
    called = sum(of_runs(base, head, 0.0).contrast.p_above(0.0) <= 0.01 for base, head in draws)
    assert called / 4000 <= nominal


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down(p_values: list[float]) -> None:
    adjusted = holm(dict(enumerate(p_values)))  # type: ignore[arg-type]
    order = np.argsort(p_values, kind="stable")
    expected = np.maximum.accumulate(
        [min(1.0, (len(p_values) - r) * p_values[i]) for r, i in enumerate(order)]
    )
    assert [adjusted[i] for i in order] == pytest.approx(list(expected))  # type: ignore[index]
