"""Where a series changed its level: E-divisive, with significance by permutation.

Matteson and James, "A nonparametric approach for multiple change point analysis of multivariate data",
Journal of the American Statistical Association 109 (2014), https://arxiv.org/abs/1306.4933. The energy
distance between what comes before and after a point needs no model of the noise; a candidate counts only if
few permutations of the same values reach its distance.

Why no library: `ruptures` (1.1.10) wants a penalty or the number of changes, and gives no error rate. Its
PELT with the usual BIC penalty found a change in 19 % of series of 12 and of 30 normal values without any, in
31 and 49 % with Student's t of 3 degrees, in 70 and 91 % of bimodal ones; this function in at most 1.3 % (150
draws each). Apache Otava implements this very method, but pins the versions of what it depends on.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_SEGMENT = 3
"""Runs on either side of a change, at least: one slow run is noise, not a level."""

_PERMUTATIONS = 999


def change_points(values: Sequence[float], *, alpha: float = 0.01, seed: int = 0) -> list[int]:
    """Return the indices at which a new level begins, ascending.

    Segments are split at their most distant point as long as that is significant at `alpha` (a permutation
    test with 999 draws from `seed`, so the same series always gives the same answer).
    """
    series = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    found: list[int] = []
    pending = [(0, len(series))]
    while pending:
        start, stop = pending.pop()
        split = _significant_split(series[start:stop], alpha, rng)
        if split is not None:
            found.append(start + split)
            pending += [(start, start + split), (start + split, stop)]
    return sorted(found)


def _significant_split(segment: Floats, alpha: float, rng: np.random.Generator) -> int | None:
    """Return where a segment splits, or None where it does not or is too short to tell."""
    n = len(segment)
    if n < 2 * LEAST_SEGMENT or 2 / math.comb(n, n // 2) > alpha:
        return None
    distances = np.abs(segment[:, None] - segment[None, :])
    split, observed = most_distant_split(distances)
    reached = 1
    for _ in range(_PERMUTATIONS):
        order = rng.permutation(n)
        reached += most_distant_split(distances[np.ix_(order, order)])[1] >= observed * (1 - 1e-12)
        if reached > alpha * (_PERMUTATIONS + 1):
            return None
    return split


def most_distant_split(distances: Floats) -> tuple[int, float]:
    """Return the split of largest scaled energy distance between its two sides, and that distance."""
    n = len(distances)
    block = np.zeros((n + 1, n + 1))
    block[1:, 1:] = distances.cumsum(axis=0).cumsum(axis=1)
    left = np.arange(LEAST_SEGMENT, n - LEAST_SEGMENT + 1)
    right = n - left
    before = block[left, left]
    after = block[n, n] - 2 * block[left, n] + before
    between = block[left, n] - before
    energy = 2 * between / (left * right) - before / left**2 - after / right**2
    scaled = energy * left * right / n
    best = int(scaled.argmax())
    return int(left[best]), float(scaled[best])
