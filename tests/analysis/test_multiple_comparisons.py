"""The blocks and bounds of the comparison with the best leave nothing out: held against all pairs."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import t

from zbench.analysis.critical import one_sided_dunnett
from zbench.analysis.multiple_comparisons import Comparisons, Floats, two_way_fit

ALPHA = 0.01


def by_the_book(table: Floats) -> tuple[list[int], dict[int, float], float | None]:
    """Return leaders, how much worse the rest is, and within what the leaders are equal, pair by pair."""
    count = len(table)
    deviation = least_squares(table)
    pooled = math.inf
    if math.isfinite(deviation[0]):
        pooled = one_sided_dunnett(count - 1, deviation[1], ALPHA / 2) * deviation[0]

    def pair(i: int, j: int) -> tuple[float, float]:
        both = [a - b for a, b in zip(table[i], table[j], strict=True) if not math.isnan(a - b)]
        if not both:
            return 0.0, math.inf
        critical = pooled * math.sqrt(2 / len(both))
        if len(both) > 1:
            own = float(np.std(both, ddof=1)) / math.sqrt(len(both))
            critical = max(critical, float(t.isf(ALPHA, len(both) - 1)) * own)
        return float(np.mean(both)), critical

    def beats(i: int, j: int) -> bool:
        mean, critical = pair(i, j)
        return mean > critical

    leaders = [i for i in range(count) if not any(beats(i, j) for j in range(count) if j != i)]
    worse = {
        i: max(0.0, min(mean - (critical if math.isfinite(critical) else 0.0) for mean, critical in of_i))
        for i, of_i in ((i, [pair(i, j) for j in leaders]) for i in range(count) if i not in leaders)
    }
    widest = max((sum(pair(i, j)) for i in leaders for j in leaders if i != j), default=math.inf)
    return leaders, worse, math.expm1(widest) if math.isfinite(widest) else None


def least_squares(table: Floats) -> tuple[float, int]:
    """Return the deviation and the degrees of freedom of `cell = row + round` from the full design matrix."""
    rows, columns = np.nonzero(~np.isnan(table))
    degrees = len(rows) - len(set(rows.tolist())) - len(set(columns.tolist())) + 1
    if degrees < 1:
        return math.inf, degrees
    design = np.zeros((len(rows), sum(table.shape)))
    design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), len(table) + columns] = 1
    values = table[rows, columns]
    left = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return math.sqrt(float((left**2).sum()) / degrees), degrees


def drawn(seed: int) -> Floats:
    """Return a random table: rows apart or not, noisy or not, every second one with cells missing."""
    rng = np.random.default_rng(seed)
    count, rounds = int(rng.integers(2, 12)), int(rng.integers(1, 7))
    noise = rng.normal(0, 0.02, (count, rounds)) * rng.choice([0.1, 1, 5], (count, 1))
    table = rng.normal(0, rng.choice([0, 0.02, 0.3]), (count, 1)) + rng.normal(0, 0.1, rounds) + noise
    if seed % 2:
        table = np.where(rng.random(table.shape) < 0.25, np.nan, table)
    return np.asarray(table[~np.isnan(table).all(axis=1)], dtype=np.float64)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_leaders_and_distances_are_those_of_all_pairs(first: int) -> None:
    for seed in range(first, first + 20):
        table = drawn(seed)
        if len(table) < 2:
            continue
        leaders, worse, within = by_the_book(table)
        found = Comparisons(table.tolist(), ALPHA)
        assert sorted(found.leaders.tolist()) == leaders, seed
        assert found.worse_by() == pytest.approx(worse, abs=1e-9), seed
        assert found.equal_within() == (within if within is None else pytest.approx(within, rel=1e-6)), seed


@pytest.mark.parametrize("seed", range(10))
def test_the_fit_is_that_of_the_full_design_matrix(seed: int) -> None:
    table = drawn(seed)
    deviation, degrees = least_squares(table)
    fit = two_way_fit(table)
    assert fit.degrees == degrees
    assert fit.deviation == pytest.approx(deviation, abs=1e-12)


@pytest.mark.parametrize("apart", [0.0, 0.05, 1.0], ids=["equal", "near", "apart"])
def test_the_number_of_comparisons_grows_with_the_rows_and_not_with_their_square(apart: float) -> None:
    """5,000 configurations: all pairs would be 25 million, and twice as many rows four times as many."""
    few, many = (compared(rows, apart) for rows in (2_500, 5_000))
    assert many < 1_000_000 if apart != 0.05 else many < 5_000_000  # near: rows that lose to most leaders
    assert many < 3.9 * few


def compared(rows: int, apart: float) -> int:
    rng = np.random.default_rng(1)
    table = rng.normal(0, apart, (rows, 1)) + rng.normal(0, 0.1, 2) + rng.normal(0, 0.02, (rows, 2))
    found = Comparisons(table.tolist(), ALPHA)
    found.worse_by()
    found.equal_within()
    return found.compared


def test_one_row_leads_and_a_row_of_no_common_round_is_not_beaten() -> None:
    assert leaders([[0.1]]) == [0]
    nan = math.nan
    assert leaders([[0.1, 0.1, nan], [0.9, 0.9, nan], [0.9, 0.91, nan], [nan, nan, 5.0]]) == [0, 3]


def leaders(table: Sequence[Sequence[float]], alpha: float = ALPHA) -> list[int]:
    return sorted(Comparisons(table, alpha).leaders.tolist())
