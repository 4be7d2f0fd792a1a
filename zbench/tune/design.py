"""The first points of a search: the file's own configuration, then points as unlike all before as can be."""

import math
import random
from collections.abc import Collection, Sequence

import optuna

from zbench.spec.axes import Axis, ValueRange
from zbench.tune.space import Point, Space, is_scaled, point_key

_POOL = 400
_DRAWS = 1000


def initial_design(space: Space, count: int, seed: int) -> list[Point]:
    """Return up to `count` distinct points that can run; the same for the same seed.

    Each point after the first is, of a random pool, the one whose nearest neighbour so far is farthest, so
    that every value of every axis is seen early. Ties are broken at random.
    """
    pool = _pool(space, random.Random(f"design/{seed}"))
    base = space.base_point()
    chosen = [base] if space.can_run(base) else pool[:1]
    while len(chosen) < count:
        keys = {point_key(point) for point in chosen}
        left = [point for point in pool if point_key(point) not in keys]
        if not left:
            break
        farthest = max(left, key=lambda point: min(distance(space.axes, point, other) for other in chosen))
        chosen.append(farthest)
    return chosen


def _pool(space: Space, generator: random.Random) -> list[Point]:
    points = space.points()
    if points is not None:
        return generator.sample(points, min(_POOL, len(points)))
    drawn: dict[str, Point] = {}
    for _ in range(_POOL // 4):
        point = random_point(space, drawn_seed(generator), drawn)
        if point is None:
            break  # what is left, if anything, is too rare to be found
        drawn[point_key(point)] = point
    return list(drawn.values())


def drawn_seed(generator: random.Random) -> int:
    """Return a seed for one of Optuna's samplers, which take those that numpy takes."""
    return generator.randrange(2**31)


def random_point(space: Space, seed: int, taken: Collection[str]) -> Point | None:
    """Return a point that can run and is not taken, drawn at random; None if none was found."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    for _ in range(_DRAWS):
        point = space.suggest(study.ask())
        if point_key(point) not in taken and space.can_run(point):
            return point
    return None


def distance(axes: Sequence[Axis], left: Point, right: Point) -> float:
    """Return how unlike two points are: a step from end to end of a scale counts 1, another kind counts 1."""
    return sum(_difference(axis, left.get(axis.key), right.get(axis.key)) for axis in axes)


def _difference(axis: Axis, left: float | None, right: float | None) -> float:
    if left == right:
        return 0.0
    if left is None or right is None:
        return 1.0
    if axis.range is not None:
        return abs(place_in(axis.range, left) - place_in(axis.range, right))
    if not is_scaled(axis):
        return 1.0
    ranks = sorted(axis.values or ())
    return abs(ranks.index(left) - ranks.index(right)) / (len(ranks) - 1)


def place_in(limits: ValueRange, value: float) -> float:
    """Return where a value lies between the ends of a range, from 0 to 1."""
    if limits.log:
        return math.log(value / limits.low) / math.log(limits.high / limits.low)
    return (value - limits.low) / (limits.high - limits.low)
