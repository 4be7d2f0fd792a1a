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

_ABSENT = ...
_Column = tuple[list[int], int]
"""The number of each point's value or combination, and how many numbers there can be."""


def covering(points: Sequence[Mapping[str, Any]], strength: int, seed: int = 0) -> list[int]:
    """Return the indices, in order, of points that hold every combination which some point holds.

    points: axis -> value; an axis that does not apply to a point is missing there, which counts as a value.
    strength: how many axes' values make a combination. Greedy: each chosen point adds the most new
    combinations (chance, by `seed`, decides between equals), so there are more points than need be.
    """
    axes = list(dict.fromkeys(axis for point in points for axis in point))
    groups = list(itertools.combinations(range(len(axes)), min(strength, len(axes))))
    columns = _combinations(points, axes, groups)
    holders: dict[int, list[int]] = {}
    for column in columns:
        for index, number in enumerate(column):
            holders.setdefault(number, []).append(index)
    order = random.Random(seed).sample(range(len(points)), len(points))
    gains, most, count = [len(columns)] * len(points), len(columns), len(points)
    waiting = list(
        range(count)
    )  # (most - gain) * count + place in `order`: a heap, its gains may be too large
    chosen: list[int] = []
    while holders:
        place = waiting[0] % count
        index = order[place]
        now = (most - gains[index]) * count + place
        if now != waiting[0]:  # what it added has been taken meanwhile
            heapq.heapreplace(waiting, now)
            continue
        heapq.heappop(waiting)
        chosen.append(index)
        for column in columns:
            for other in holders.pop(column[index], ()):
                gains[other] -= 1
    return sorted(chosen)


def _combinations(
    points: Sequence[Mapping[str, Any]], axes: Sequence[str], groups: Sequence[tuple[int, ...]]
) -> list[list[int]]:
    """Return for each of `groups` of axes the number of the combination that each point holds.

    Taken column by column: with tens of thousands of points, a key for every point and group takes seconds.
    """
    columns = [_numbered([point.get(axis, _ABSENT) for point in points]) for axis in axes]
    found: dict[tuple[int, ...], _Column] = {(): ([0] * len(points), 1)}
    first, held = 0, list[list[int]]()
    for group in groups:
        for length in range(1, len(group) + 1):
            head, last = group[: length - 1], group[length - 1]
            if group[:length] not in found:
                (before, size), (values, kinds) = found[head], columns[last]
                joined = [number * kinds + value for number, value in zip(before, values, strict=True)]
                found[group[:length]] = (joined, size * kinds)
        numbers, size = found[group]
        held.append([first + number for number in numbers])
        first += size
    return held


def _numbered(values: Sequence[object]) -> _Column:
    """Return each value's number, equal for equal values, and how many numbers there are."""
    numbers: dict[tuple[str, object], int] = {}
    by_object: dict[int, int] = {}  # points share the objects of their values, which the sequence keeps alive
    for value in values:
        if id(value) not in by_object:
            by_object[id(value)] = numbers.setdefault(_value(value), len(numbers))
    return [by_object[id(value)] for value in values], len(numbers)


def _value(value: object) -> tuple[str, object]:
    """Return a value as a key of a dictionary: `True` is not 1 there, and a block is its text."""
    known = value is _ABSENT or isinstance(value, str | int | float | bool | None)
    return type(value).__name__, value if known else json.dumps(value, sort_keys=True)
