"""Few points of a large product in which every few choices meet."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

Axes = Mapping[str, Sequence[Any]]
Point = dict[str, Any]
Indices = list[int]

MANY, FEW = 40, 12


def covering(axes: Axes, strength: int, seed: int) -> list[Point]:
    """Return points of which every combination of `strength` axes' values occurs in some.

    Greedy, the same for one seed: each point begins with a combination that is missing and is the best of a
    few that chance completes. So there are more points than need be, by a quarter or so.
    """
    draw, sizes = random.Random(seed), [len(values) for values in axes.values()]
    together = list(itertools.combinations(range(len(sizes)), strength))
    missing = {
        (group, values)
        for group, of in enumerate(together)
        for values in itertools.product(*(range(sizes[axis]) for axis in of))
    }
    waiting, points = sorted(missing), []
    draw.shuffle(waiting)
    for group, values in waiting:
        if (group, values) not in missing:
            continue
        given = dict(zip(together[group], values, strict=True))
        best: set[tuple[int, tuple[int, ...]]] = set()
        for _ in range(MANY if strength == 2 else FEW):  # larger arrays would take minutes to find
            candidate = [given.get(axis, draw.randrange(size)) for axis, size in enumerate(sizes)]
            new = missing.intersection(_met(candidate, together))
            if len(new) > len(best):
                best, chosen = new, candidate
        missing -= best
        points.append({name: axes[name][k] for name, k in zip(axes, chosen, strict=True)})
    return points


def _met(point: Indices, together: Sequence[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    return [(group, tuple([point[axis] for axis in of])) for group, of in enumerate(together)]
