"""Few points of a large space in which every few choices meet: a covering array with constraints.

Most faults need two or three settings to meet (Kuhn, Wallace, Gallo: Software Fault Interactions and
Implications for Software Testing, IEEE TSE 30(6), 2004), so strength 2 or 3 finds them in a small share of
the product's points.
"""

import heapq
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any


def covering(points: Sequence[Mapping[str, Any]], strength: int, seed: int = 0) -> list[int]:
    """Return the indices, in order, of points that hold every combination which some point holds.

    points: axis -> value; an axis that does not apply to a point is missing there, which counts as a value.
    strength: how many axes' values make a combination. Greedy: each chosen point adds the most new
    combinations (chance, by `seed`, decides between equals), so there are more points than need be.
    """
    axes = list(dict.fromkeys(axis for point in points for axis in point))
    groups = list(itertools.combinations(range(len(axes)), min(strength, len(axes))))
    held = _combinations(points, axes, groups)
    missing = set(itertools.chain.from_iterable(held))
    order = random.Random(seed).sample(range(len(points)), len(points))
    waiting = [(-len(held[index]), place, index) for place, index in enumerate(order)]
    heapq.heapify(waiting)
    chosen: list[int] = []
    while missing:
        _, place, index = heapq.heappop(waiting)
        gain = len(missing.intersection(held[index]))
        if waiting and (-gain, place, index) > waiting[0]:  # what it added has been taken meanwhile
            heapq.heappush(waiting, (-gain, place, index))
            continue
        missing.difference_update(held[index])
        chosen.append(index)
    return sorted(chosen)


def _combinations(
    points: Sequence[Mapping[str, Any]], axes: Sequence[str], groups: Sequence[tuple[int, ...]]
) -> list[list[int]]:
    """Return the numbers of the combinations that each point holds, one for each of `groups` of axes."""
    numbers: dict[object, int] = {}
    held = []
    for point in points:
        values = [_value(point[axis]) if axis in point else None for axis in axes]
        keys = ((group, *(values[k] for k in group)) for group in groups)
        held.append([numbers.setdefault(key, len(numbers)) for key in keys])
    return held


def _value(value: object) -> tuple[str, object]:
    """Return a value as a key of a dictionary: `True` is not 1 there, and a block is its text."""
    known = isinstance(value, str | int | float | bool | None)
    return type(value).__name__, value if known else json.dumps(value, sort_keys=True)
