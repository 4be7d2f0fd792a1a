"""What one step of one rank does, apart from when: the operators, and the bytes that they touch. No torch."""

import dataclasses
from dataclasses import dataclass

CACHED = 1 << 20
"""Bytes. Operators that touch no more work in a processor's caches."""


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one size: the operations and the bytes of each, and how many there are."""

    flops: float
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step of one rank.

    operators: how many torch runs, views included. products: those that multiply matrices. cached_bytes,
    streamed_bytes: what all others read and write, by whether one operator touches at most CACHED of it.
    host_bytes: what is read and written in offloaded memory. copied_bytes: what crosses between the two.
    """

    operators: int = 0
    products: list[Product] = dataclasses.field(default_factory=list)
    cached_bytes: int = 0
    streamed_bytes: int = 0
    host_bytes: int = 0
    copied_bytes: int = 0
