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
    numbers: dict[tuple[object, ...], int] = {}
    held = []  # of each point, the numbers of the combinations that it holds
    for point in points:
        texts = [json.dumps(point[axis], sort_keys=True) if axis in point else None for axis in axes]
        combinations = ((group, *(texts[axis] for axis in group)) for group in groups)
        held.append([numbers.setdefault(combination, len(numbers)) for combination in combinations])
    missing = set(numbers.values())
    order = random.Random(seed).sample(range(len(points)), len(points))
    heap = [(-len(groups), place, index) for place, index in enumerate(order)]
    chosen: list[int] = []
    while missing:
        gain, place, index = heap[0]
        now = -len(missing.intersection(held[index]))
        if now != gain:  # another point has added some of its combinations meanwhile
            heapq.heapreplace(heap, (now, place, index))
            continue
        heapq.heappop(heap)
        chosen.append(index)
        missing.difference_update(held[index])
    return sorted(chosen)
