"""The order of repeats: all configurations once, shuffled, then all again, so that a drift hits all alike."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T], *, seed: int, round_number: int) -> list[T]:
    """Return the items in an order that depends on seed and round alone."""
    order = list(items)
    random.Random(f"{seed}/{round_number}").shuffle(order)
    return order
