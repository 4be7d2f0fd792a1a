"""Which point comes next. Every proposer is a function of its seed and of what has been seen, nothing else.

So a search that was interrupted goes on as if it had not been, and several workers that share one history
draw from the same posterior. Optuna's samplers work on a study that is rebuilt in memory from the history:
points that were drawn and found taken leave no trace in the shared study.
"""

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState, create_trial

from zbench.spec.metrics import Direction
from zbench.spec.sweep import SearchSpec
from zbench.tune.objective import History, best_first
from zbench.tune.space import Point, Space, point_key

_ATTEMPTS = 12
"""Draws that may hit points already taken before an untaken one near the best is picked."""
_POOL, _POOL_DRAWN = 400, 100
_GENERATION = "NSGAIISampler:generation"
"""Where Optuna keeps to which generation a trial belongs."""
_TPE = partial(TPESampler, n_startup_trials=0, multivariate=True, group=True, constant_liar=True)

Propose = Callable[[History, Collection[str]], Point | None]
"""Returns a point that can run and whose key is not taken; None where none is left.

Given what may teach (running trials too), and the keys of all points that someone has claimed.
"""


@dataclass(frozen=True, slots=True)
class Model:
    """A design of well-spread points first, then what an Optuna sampler learns from all that was seen.

    make_sampler: makes one from a seed. generation: how many finished trials are one for NSGA-II.
    """

    space: Space
    directions: tuple[Direction, ...]
    seed: int
    design: list[Point]
    make_sampler: Callable[[int], BaseSampler]
    generation: int = 1

    def propose(self, history: History, taken: Collection[str]) -> Point | None:
        """Return the next point of the design, or the sampler's choice among untaken points."""
        is_early = len(history) < startup_points(self.space)
        if is_early and (first := _first_untaken(self.design, taken)) is not None:
            return first
        seed = _draw_seed(self.seed, len(taken))
        study = self._rebuilt(history, seed)
        for _ in range(_ATTEMPTS):
            trial, point = self.space.draw(study)
            if point_key(point) not in taken and self.space.can_run(point):
                return point
            study.tell(trial, state=TrialState.FAIL)
        return self._near_the_best(history, taken, seed)

    def _near_the_best(self, history: History, taken: Collection[str], seed: int) -> Point | None:
        """Return the untaken point nearest to the best: the sampler is sure, and its favourites are done."""
        points = self.space.points()
        if points is None:
            return self.space.random_point(seed, taken)
        points = random.Random(seed).sample(points, len(points))
        for best in best_first(history, self.directions)[:1]:
            points.sort(key=lambda point: self.space.distance(point, best.user_attrs["point"]))
        return _first_untaken(points, taken)

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
    seed, points = search.seed, space.points()
    if search.method in ("tpe", "nsga2"):
        size = population(search.trials) if search.method == "nsga2" else 1
        design = initial_design(space, startup_points(space), seed)
        make_sampler = partial(NSGAIISampler, population_size=size) if size > 1 else _TPE
        return Model(space, directions, seed, design, lambda seed: make_sampler(seed=seed), size).propose
    if points is None:
        return lambda history, taken: space.random_point(_draw_seed(seed, len(taken)), taken)
    if search.method == "random":
        points = random.Random(seed).sample(points, len(points))
    return lambda history, taken: _first_untaken(points, taken)


def startup_points(space: Space) -> int:
    """Return how many points are tried before a model is asked: enough to see each axis change."""
    return max(5, min(10, len(space.axes) + 2))


def population(trials: int) -> int:
    """Return how many trials are one generation of NSGA-II, where a search may try so many in all."""
    return max(8, min(50, trials // 5))


def initial_design(space: Space, count: int, seed: int) -> list[Point]:
    """Return up to `count` distinct points that can run; the same for the same seed.

    The file's own configuration is the first. Each further point is, of a random pool, the one whose nearest
    neighbour so far is farthest, so that every value of every axis is seen early.
    """
    pool = _pool(space, random.Random(f"design/{seed}"))
    base = space.base_point()
    chosen = [base] if space.can_run(base) else pool[:1]
    while len(chosen) < count:
        left = [point for point in pool if point not in chosen]
        if not left:
            break
        chosen.append(max(left, key=lambda point: min(space.distance(point, other) for other in chosen)))
    return chosen


def _pool(space: Space, generator: random.Random) -> list[Point]:
    points = space.points()
    if points is not None:
        return generator.sample(points, min(_POOL, len(points)))
    drawn: dict[str, Point] = {}
    for _ in range(_POOL_DRAWN):
        point = space.random_point(generator.randrange(2**31), drawn)
        if point is None:
            break  # what is left, if anything, is too rare to be found
        drawn[point_key(point)] = point
    return list(drawn.values())


def _first_untaken(points: Iterable[Point], taken: Collection[str]) -> Point | None:
    return next((point for point in points if point_key(point) not in taken), None)


def _draw_seed(seed: int, asked: int) -> int:
    """Return a seed for one draw: the same whenever as much had been asked for, else another."""
    return random.Random(f"{seed}/{asked}").randrange(2**31)
