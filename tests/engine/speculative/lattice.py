"""Few cases of a large product that meet every pair of choices."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Axes = Mapping[str, Sequence[Any]]
Point = dict[str, Any]


def product(axes: Axes) -> Iterator[Point]:
    """Yield every point."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def pairwise(axes: Axes, seed: int) -> list[Point]:
    """Return points of which every pair of two axes' values occurs in some; few, but not the fewest."""
    draw = random.Random(seed)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(axes, 2) for x in axes[a] for y in axes[b]}
    points = []
    while missing:
        candidates = [{k: draw.choice(v) for k, v in axes.items()} for _ in range(50)]
        first = min(missing, key=repr)
        for candidate in candidates:
            candidate.update(dict(first))
        best = max(candidates, key=lambda c: len(_pairs(c) & missing))
        missing -= _pairs(best)
        points.append(best)
    return points


def _pairs(point: Point) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    return {((a, point[a]), (b, point[b])) for a, b in itertools.combinations(point, 2)}
