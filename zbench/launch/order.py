"""In which order repeats run: all configurations once, shuffled, then all again. A drift hits all alike."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T], *, seed: int, round_number: int) -> list[T]:
    """Return the items in an order that depends on seed and round alone."""
    order = list(items)
    random.Random(f"{seed}/{round_number}").shuffle(order)
    return order


def interleaved(items: Sequence[T], *, repeats: int, seed: int) -> Iterator[tuple[T, int]]:
    """Yield (item, repeat) for every item and repeat 0, 1, ...; each repeat of all items before the next."""
    for repeat in range(repeats):
        for item in shuffled(items, seed=seed, round_number=repeat):
            yield item, repeat
