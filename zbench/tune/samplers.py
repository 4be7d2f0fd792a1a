"""Which point comes next. Every proposer is a function of its seed and of what has been seen, nothing else.

So a search that was interrupted goes on as if it had not been, and several workers that share one history
draw from the same posterior. Optuna's samplers work on a study that is rebuilt in memory from the history:
points that were drawn and found taken leave no trace in the shared study.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState, create_trial

from zbench.spec.metrics import Direction
from zbench.spec.sweep import SearchSpec
from zbench.tune.objective import History
from zbench.tune.space import Point, Space, point_key

_ATTEMPTS = 50
"""Draws that may hit points already taken before any untaken one is picked."""
_GENERATION = "NSGAIISampler:generation"
"""Where Optuna keeps to which generation a trial belongs."""

Propose = Callable[[History, Collection[str]], Point | None]
"""Returns a point that can run and whose key is not taken; None where none is left.

Given what may teach (running trials too), and the keys of all points that someone has claimed.
"""


@dataclass(frozen=True, slots=True)
class Model:
    """The file's own configuration first, then what an Optuna sampler draws from all that was seen.

    make_sampler: makes one from a seed. generation: how many finished trials are one for NSGA-II.
    """

    space: Space
    directions: tuple[Direction, ...]
    seed: int
    make_sampler: Callable[[int], BaseSampler]
    generation: int = 1

    def propose(self, history: History, taken: Collection[str]) -> Point | None:
        """Return the sampler's choice among untaken points; any of them where it keeps to taken ones."""
        base = self.space.base_point()
        if point_key(base) not in taken and self.space.can_run(base):
            return base
        seed = _draw_seed(self.seed, len(taken))
        study = self._rebuilt(history, seed)
        for _ in range(_ATTEMPTS):
            trial, point = self.space.draw(study)
            if point_key(point) not in taken and self.space.can_run(point):
                return point
            study.tell(trial, state=TrialState.FAIL)
        return self.space.random_point(seed, taken)

    def _rebuilt(self, history: History, seed: int) -> optuna.Study:
        study = optuna.create_study(directions=list(self.directions), sampler=self.make_sampler(seed))
        finished = 0
        for seen in history:
            if not seen.params:  # a point of `include`, whose keys are no axes
                continue
            generation = {_GENERATION: finished // self.generation} if seen.values is not None else {}
            finished += seen.values is not None
            study.add_trial(
                create_trial(
                    state=seen.state,
                    values=seen.values,
                    params=seen.params,
                    distributions=seen.distributions,
                    constraints=seen.constraints,
                    system_attrs=generation,
                )
            )
        return study


def make_proposer(space: Space, search: SearchSpec, directions: tuple[Direction, ...]) -> Propose:
    """Return what proposes the points of a search."""
    seed = search.seed
    size = population(search.trials)
    if search.method == "tpe":
        tpe = partial(TPESampler, multivariate=True, group=True, constant_liar=True)
        startup = startup_points(space)
        return Model(space, directions, seed, lambda seed: tpe(seed=seed, n_startup_trials=startup)).propose
    if search.method == "nsga2":
        nsga2 = partial(NSGAIISampler, population_size=size)
        return Model(space, directions, seed, lambda seed: nsga2(seed=seed), size).propose
    points = space.points() if search.method == "grid" else None
    if points is not None:
        return lambda _, taken: next((point for point in points if point_key(point) not in taken), None)
    return lambda _, taken: space.random_point(_draw_seed(seed, len(taken)), taken)


def startup_points(space: Space) -> int:
    """Return how many points TPE draws at random before it models: enough to see each axis change."""
    return max(5, min(10, len(space.axes) + 2))


def population(trials: int) -> int:
    """Return how many trials are one generation of NSGA-II, where a search may try so many in all."""
    return max(8, min(50, trials // 5))


def _draw_seed(seed: int, asked: int) -> int:
    """Return a seed for one draw: the same whenever as much had been asked for, else another."""
    return random.Random(f"{seed}/{asked}").randrange(2**31)
