"""Play a search against a grid that is already known, and count what it needed."""

import random
import statistics
from collections.abc import Iterable
from dataclasses import replace

from zbench.tune.history import Observation, Score
from zbench.tune.samplers import make_proposer
from zbench.tune.space import point_key

from .grid import Grid


def trials_needed(grid: Grid, method: str, seed: int, *, within: float = 0.02, noise: float = 0.0) -> int:
    """Return how many trials it takes until one is within a share of the best (its true value counts).

    noise: standard deviation, as a share, of what the search sees of each value.
    """
    budget = len(grid.scores)
    proposer = make_proposer(grid.space, method, grid.scorer.directions, seed=seed, trials=budget)
    generator = random.Random(f"noise/{seed}")
    history: list[Observation] = []
    taken: set[str] = set()
    while (proposal := proposer.propose(history, taken)) is not None:
        key = point_key(proposal.point)
        assert key not in taken, "a point was proposed twice"
        taken.add(key)
        score = grid.scores[key]
        if grid.is_good(score, within):
            return len(taken)
        history.append(Observation(proposal.point, _seen(score, generator, noise), proposal.notes))
    raise AssertionError(f"{method} ran out of points after {len(taken)}")


def median_trials(grid: Grid, method: str, seeds: Iterable[int], *, noise: float = 0.0) -> float:
    """Return the median of `trials_needed` over seeds."""
    return statistics.median(trials_needed(grid, method, seed, noise=noise) for seed in seeds)


def _seen(score: Score, generator: random.Random, noise: float) -> Score:
    if score.values is None or noise == 0:
        return score
    return replace(score, values=tuple(value * (1 + generator.gauss(0, noise)) for value in score.values))
