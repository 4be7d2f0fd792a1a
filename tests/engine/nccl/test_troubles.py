"""Ranks agree or stop, by NCCL's rules: where one does not go on, every rank raises, and names the cause."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engine.nccl.cases import Script
from zbench.engine.transport import agreement
from zbench.testing.ranks import RankPool

SPECS: list[dict[str, Any]] = [
    {"zero_stage": 3, "param_persistence_threshold": 0, "prefetch_bucket_size": 1},
    {"zero_stage": 1},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
]
SOON = 10.0
"""Seconds within which every rank must have raised."""
PATIENCES = (0.1, pytest.param(agreement.PATIENCE, marks=pytest.mark.soak))


def test_patience_two_looks_and_hearing_end_soon_enough() -> None:
    """A rank posts what it waits for, another one's look (five in a patience) sees it, and all tell all."""
    assert agreement.PATIENCE * (1 + 2 / 5) + agreement._SECONDS_TO_HEAR < SOON


@contextmanager
def pool(world: int) -> Iterator[RankPool]:
    ranks = RankPool(world)
    try:
        yield ranks
    finally:
        ranks.close()


def spec_at(place: str) -> dict[str, Any]:
    return SPECS[Script.PLACES.index(place) % len(SPECS)]


def check(heard: list[tuple[str, float]], kind: str, world: int) -> None:
    *others, last = heard
    if kind == "raises":
        assert "out of memory, say" in last[0], last
    for text, seconds in others if kind == "raises" else heard:
        assert text.startswith("RanksDisagreeError"), text
        assert seconds < SOON, (text, seconds)
        named = f"rank {world - 1}"
        assert named in text, text


@pytest.mark.parametrize("kind", ["raises", "differs"])
@pytest.mark.parametrize(
    "world", [2, pytest.param(4, marks=pytest.mark.soak), pytest.param(8, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("patience", PATIENCES)
def test_every_rank_raises_soon_and_names_the_cause(world: int, kind: str, patience: float) -> None:
    with pool(world) as ranks:
        for place in Script.PLACES:
            heard = ranks.run(world, "tests.engine.nccl.cases:trouble", kind, place, spec_at(place), patience)
            check(heard, kind, world)


@pytest.mark.parametrize(
    ("world", "places"),
    [
        (2, ("backward", "step", "full_parameters")),
        *(pytest.param(world, Script.PLACES, marks=pytest.mark.soak) for world in (2, 4, 8)),
    ],
)
@pytest.mark.parametrize("patience", PATIENCES)
def test_the_end_of_a_rank_is_named_on_the_others(
    world: int, places: tuple[str, ...], patience: float
) -> None:
    """NCCL waits on for a rank that was killed."""
    for place in places:
        with pool(world) as ranks:
            ranks.begin(world, "tests.engine.nccl.cases:trouble", "ends", place, spec_at(place), patience)
            for rank in range(world - 1):
                returned, answer = ranks.answer(rank, 60.0)
                assert returned, answer
                text, seconds = answer
                assert text.startswith("RanksDisagreeError"), (place, text)
                assert f"rank {world - 1} has left" in text, (place, text)
                assert seconds < SOON, (place, seconds)
