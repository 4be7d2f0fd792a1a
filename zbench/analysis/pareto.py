"""The Pareto front: what nothing else beats in every respect. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from zbench.spec.metrics import Direction

Key = TypeVar("Key", bound=Hashable)


def dominates(left: Sequence[float], right: Sequence[float], directions: Sequence[Direction]) -> bool:
    """Whether `left` is at least as good as `right` in every objective and better in one."""
    ahead = [a - b if d == "maximize" else b - a for a, b, d in zip(left, right, directions, strict=True)]
    return all(by >= 0 for by in ahead) and any(by > 0 for by in ahead)


def pareto_front(values: Mapping[Key, Sequence[float]], directions: Sequence[Direction]) -> list[Key]:
    """Return the keys that no other key dominates, best of the first objective first; equal ones all stay."""
    front = [
        key
        for key, mine in values.items()
        if not any(dominates(other, mine, directions) for other in values.values())
    ]
    return sorted(front, key=lambda key: values[key][0], reverse=directions[0] == "maximize")
