"""Which point comes next. Every proposer is a function of its seed and of what has been seen, nothing else.

So a search that was interrupted goes on as if it had not been, and several workers that share one history
draw from the same posterior. Optuna's samplers work on a study that is rebuilt in memory from the history:
points that were drawn and found taken leave no trace in the shared study.
"""

import random
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from zbench.spec.metrics import Direction
from zbench.tune.design import distance, drawn_seed, initial_design, random_point
from zbench.tune.history import History, Observation, best_first
from zbench.tune.space import Point, Space, point_key

_ATTEMPTS = 12
"""Draws that may hit points already taken before one of the untaken is picked at random."""

Order = Callable[[list[Point]], list[Point]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to try, and what the sampler wants to find in `Observation.notes` later."""

    point: Point
    notes: Mapping[str, Any]


class Proposer(Protocol):
    """Chooses the next point."""

    def propose(self, history: History, taken: Collection[str]) -> Proposal | None:
        """Return a point that can run and whose key is not in `taken`; None where none is left.

        history: what may teach (running trials too); taken: keys of all points that someone has claimed.
        """


def _first_untaken(points: Iterable[Point], taken: Collection[str]) -> Proposal | None:
    return next((Proposal(point, {}) for point in points if point_key(point) not in taken), None)


class OrderedProposer:
    """Every point once, in a fixed order: the grid, or a random permutation of it."""

    def __init__(self, space: Space, order: list[Point]) -> None:
        self._space, self._order = space, order

    def propose(self, history: History, taken: Collection[str]) -> Proposal | None:
        """Return the first point of the order that is not taken."""
        return _first_untaken(self._order, taken)


class RandomProposer:
    """Uniform draws from a space that cannot be listed."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed

    def propose(self, history: History, taken: Collection[str]) -> Proposal | None:
        """Return an untaken point drawn at random."""
        point = random_point(self._space, _sampler_seed(self._seed, len(taken)), taken)
        return None if point is None else Proposal(point, {})


class ModelProposer:
    """A design of well-spread points first, then what an Optuna sampler learns from all that was seen."""

    def __init__(
        self,
        space: Space,
        directions: tuple[Direction, ...],
        seed: int,
        make_sampler: Callable[[int], BaseSampler],
        startup: int,
        order: Order,
    ) -> None:
        self._space, self._directions, self._seed = space, directions, seed
        self._make_sampler, self._startup = make_sampler, startup
        self._design = order(initial_design(space, startup, seed))

    def propose(self, history: History, taken: Collection[str]) -> Proposal | None:
        """Return the next point of the design, or the sampler's choice among untaken points."""
        if len(history) < self._startup and (first := _first_untaken(self._design, taken)) is not None:
            return first
        study = self._rebuilt(history, _sampler_seed(self._seed, len(taken)))
        for _ in range(_ATTEMPTS):
            trial = study.ask()
            point = self._space.suggest(trial)
            if point_key(point) not in taken and self._space.can_run(point):
                *_, asked = study.get_trials(deepcopy=False)
                kept = {k: v for k, v in asked.system_attrs.items() if k.endswith(":generation")}
                return Proposal(point, kept)
            study.tell(trial, state=TrialState.FAIL)
        return self._beside_the_best(history, taken)

    def _beside_the_best(self, history: History, taken: Collection[str]) -> Proposal | None:
        """Return the untaken point nearest to the best: the sampler is sure, and its favourites are done."""
        points, seed = self._space.points(), _sampler_seed(self._seed, len(taken))
        if points is None:
            return RandomProposer(self._space, self._seed).propose(history, taken)
        left = [point for point in points if point_key(point) not in taken]
        random.Random(seed).shuffle(left)
        best = next(iter(best_first(history, self._directions)), None)
        if best is not None:
            left.sort(key=lambda point: distance(self._space.axes, point, best))
        return _first_untaken(left, taken)

    def _rebuilt(self, history: History, seed: int) -> optuna.Study:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(directions=list(self._directions), sampler=self._make_sampler(seed))
        worst = _worst_values(history, self._directions)
        for observation in history:
            frozen = self._frozen(observation, worst)
            if frozen is not None:
                study.add_trial(frozen)
        return study

    def _frozen(self, seen: Observation, worst: list[float]) -> FrozenTrial | None:
        encoded = self._space.encode(seen.point)
        if encoded is None:
            return None
        params, distributions = encoded
        notes = dict(seen.notes)
        if seen.score is None:
            return create_trial(
                state=TrialState.RUNNING, params=params, distributions=distributions, system_attrs=notes
            )
        values = list(seen.score.values) if seen.score.values is not None else worst
        trial = create_trial(params=params, distributions=distributions, values=values, system_attrs=notes)
        for name, margin in seen.score.margins.items():
            trial.set_constraint(name, margin)
        return trial


def make_proposer(
    space: Space,
    method: str,
    directions: tuple[Direction, ...],
    *,
    seed: int,
    trials: int,
    order: Order = list,
) -> Proposer:
    """Return the proposer of a search method. trials: how many points the search may try. order: of the
    points that are tried before anything was seen; it leaves none out.
    """
    if method in ("grid", "random"):
        points = space.points()
        if points is None:
            return RandomProposer(space, seed)
        if method == "random":
            points = random.Random(seed).sample(points, len(points))
        return OrderedProposer(space, order(points[:trials]) + points[trials:])
    startup = startup_points(space)
    if method == "tpe":
        return ModelProposer(space, directions, seed, _tpe(len(directions)), startup, order)
    size = population(trials)
    return ModelProposer(
        space, directions, seed, lambda s: NSGAIISampler(population_size=size, seed=s), startup, order
    )


def startup_points(space: Space) -> int:
    """Return how many points are tried before a model is asked: enough to see each axis change."""
    return max(5, min(10, len(space.axes) + 2))


def population(trials: int) -> int:
    """Return how many trials are one generation of NSGA-II, where a search may try so many in all."""
    return max(8, min(50, trials // 5))


def _tpe(objectives: int) -> Callable[[int], BaseSampler]:
    def make(seed: int) -> BaseSampler:
        return TPESampler(
            seed=seed,
            n_startup_trials=0,
            multivariate=True,
            group=True,
            constant_liar=True,
        )

    return make


def _worst_values(history: History, directions: tuple[Direction, ...]) -> list[float]:
    """Return the worst value seen of each objective, which stands in for trials that did not finish."""
    seen = [o.score.values for o in history if o.score is not None and o.score.values is not None]
    columns = list(zip(*seen, strict=True)) or [(0.0,)] * len(directions)
    return [min(c) if d == "maximize" else max(c) for c, d in zip(columns, directions, strict=True)]


def _sampler_seed(seed: int, asked: int) -> int:
    """Return a seed for one draw: the same whenever as much had been asked for, else another."""
    return drawn_seed(random.Random(f"{seed}/{asked}"))
