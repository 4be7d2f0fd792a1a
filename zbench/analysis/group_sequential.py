"""Looking several times at data that grows: one rule for sweeps that repeat and for paired measurements.
Pure.

Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70 (1983): of the error rate,
a look may have spent the share of all data that it sees. Boundaries come from the recursion of Armitage,
McPherson and Rowe (1969; Jennison and Turnbull, "Group Sequential Methods", 2000, chapter 19). They hold for
a normal mean. For Student's t each is applied as a nominal level (the significance-level approach, same book,
section 3.8); `tools/benchmarks/error_rates.py` simulates what that makes of the error.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

_POWER = 3  # nearly all of alpha is left for the last looks, so that looking costs little power
_WIDEST = 8.5  # standard errors: the normal distribution beyond them is below rounding
_POINTS = 601


@cache
def nominal_levels(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Return the one-sided level to test at, at each look, so that all looks together err with `alpha`.

    looks: the number of blocks at each look, ascending; the last is the most there can be.
    """
    # one boundary after another, carrying the density of the sum among those not yet stopped
    most = looks[-1]
    budget = [alpha * (look / most) ** _POWER for look in looks]
    grid = _grid(most)
    step = float(grid[1] - grid[0])
    levels: list[float] = []
    density: NDArray[np.float64] | None = None
    for i, look in enumerate(looks):
        since = look - (looks[i - 1] if i else 0)
        density = _spread(density, most, since)
        spending = budget[i] - (budget[i - 1] if i else 0.0)
        boundary = _boundary(density, grid, spending, step)
        levels.append(float(ndtr(-boundary / math.sqrt(look))))
        density = density * _below(grid, boundary, step)
    return tuple(levels)


def _grid(most: int) -> NDArray[np.float64]:
    """Return the sums at which densities are held; `most` is the variance of the last one."""
    return np.asarray(np.linspace(-_WIDEST, _WIDEST, _POINTS) * math.sqrt(most))


@cache
def _kernel(most: int, blocks: int) -> NDArray[np.float64]:
    """Return the density of `blocks` standard normal terms between all points of the grid, times its step."""
    grid = _grid(most)
    distance = grid[:, None] - grid[None, :]
    kernel = np.exp(-(distance**2) / (2 * blocks)) / math.sqrt(2 * math.pi * blocks)
    return np.asarray(kernel * (grid[1] - grid[0]))


def _spread(density: NDArray[np.float64] | None, most: int, blocks: int) -> NDArray[np.float64]:
    """Return the density of the sum after `blocks` more standard normal terms."""
    if density is None:
        return np.asarray(np.exp(-(_grid(most) ** 2) / (2 * blocks)) / math.sqrt(2 * math.pi * blocks))
    return np.asarray(_kernel(most, blocks) @ density)


def _boundary(density: NDArray[np.float64], grid: NDArray[np.float64], alpha: float, step: float) -> float:
    """Return the sum that is passed with probability `alpha`."""
    tail = (density[::-1].cumsum()[::-1] - density / 2) * step  # half of a point's cell lies above it
    return float(np.interp(-alpha, -tail, grid))


def _below(grid: NDArray[np.float64], boundary: float, step: float) -> NDArray[np.float64]:
    """Return how much of each point's cell lies below the boundary."""
    return np.asarray(np.clip((boundary - grid) / step + 0.5, 0.0, 1.0))
