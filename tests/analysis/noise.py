"""Simulated noise of step times, in logarithms and in order of time; arrays are (experiments, samples)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Floats]


def normal(rng: np.random.Generator, experiments: int, samples: int) -> Floats:
    """Independent, normal, 2 %."""
    return rng.normal(0, 0.02, (experiments, samples))


def heavy_tailed(rng: np.random.Generator, experiments: int, samples: int) -> Floats:
    """Student's t with 3 degrees of freedom: now and then a sample is far off."""
    return 0.012 * rng.standard_t(3, (experiments, samples))


def bimodal(rng: np.random.Generator, experiments: int, samples: int) -> Floats:
    """A fifth of the processes falls into a mode that is 6 % slower (memory layout, another core)."""
    slow = rng.random((experiments, samples)) < 0.2
    return rng.normal(0, 0.005, (experiments, samples)) + 0.06 * slow


def drifting(phi: float) -> Noise:
    """A machine that drifts: AR(1) of 2 %, remembering `phi` of the sample before, and 0.3 % of its own."""

    def noise(rng: np.random.Generator, experiments: int, samples: int) -> Floats:
        state = rng.normal(0, 0.02, experiments)
        columns = []
        for _ in range(samples):
            columns.append(state)
            state = phi * state + rng.normal(0, 0.02 * np.sqrt(1 - phi**2), experiments)
        return np.stack(columns, axis=1) + rng.normal(0, 0.003, (experiments, samples))

    return noise


KINDS: dict[str, Noise] = {
    "normal": normal,
    "heavy-tailed": heavy_tailed,
    "bimodal": bimodal,
    "AR(1) 0.5": drifting(0.5),
    "AR(1) 0.9": drifting(0.9),
    "AR(1) 0.99": drifting(0.99),
}
