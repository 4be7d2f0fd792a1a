"""Few points of a large product in which every few choices meet."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from zbench.spec import expand

Point = dict[str, Any]


def covering(axes: Mapping[str, Sequence[Any]], strength: int, seed: int) -> list[Point]:
    """Return points of which every combination of `strength` axes' values occurs in some, the same for one
    seed.

    They are chosen from a sample of the product in which the rarest combination occurs some 20 times.
    """
    draw = random.Random(seed)
    count = 20 * math.prod(sorted(len(values) for values in axes.values())[-strength:])
    places = [{name: draw.choice(range(len(values))) for name, values in axes.items()} for _ in range(count)]
    chosen = (places[index] for index in expand.covering(places, strength, seed))
    return [{name: axes[name][place] for name, place in point.items()} for point in chosen]


def by_default(usual: Callable[..., bool], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return rows as parameters of a test, of which `make check` alone has those that are not `usual`."""
    return [pytest.param(*row, marks=[] if usual(*row) else [pytest.mark.check]) for row in rows]
