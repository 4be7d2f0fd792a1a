"""The first points of a search: the file's own configuration, then points as unlike all before as can be."""

import random
from collections.abc import Sequence

from zbench.spec.axes import Axis
from zbench.tune.space import Point, Space, is_scaled, point_key

_POOL = 400


def initial_design(space: Space, count: int, seed: int) -> list[Point]:
    """Return up to `count` distinct points that can run; the same for the same seed.

    Each point after the first is, of a random pool, the one whose nearest neighbour so far is farthest, so
    that every value of every axis is seen early. Ties are broken at random.
    """
    generator = random.Random(f"design/{seed}")
    pool = space.points()
    if pool is None:
        return []
    pool = generator.sample(pool, min(_POOL, len(pool)))
    base = space.base_point()
    chosen = [base] if space.can_run(base) else pool[:1]
    while len(chosen) < min(count, len(pool)):
        keys = {point_key(point) for point in chosen}
        left = [point for point in pool if point_key(point) not in keys]
        if not left:
            break
        chosen.append(
            max(left, key=lambda point: min(distance(space.axes, point, other) for other in chosen))
        )
    return chosen


def distance(axes: Sequence[Axis], left: Point, right: Point) -> float:
    """Return how unlike two points are: a step from end to end of a scale counts 1, another kind counts 1."""
    return sum(_difference(axis, left.get(axis.key), right.get(axis.key)) for axis in axes)


def _difference(axis: Axis, left: object, right: object) -> float:
    if left == right:
        return 0.0
    if left is None or right is None or not is_scaled(axis):
        return 1.0
    ranks = sorted(axis.values or ())
    return abs(ranks.index(left) - ranks.index(right)) / (len(ranks) - 1)
