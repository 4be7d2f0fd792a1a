"""Random backwards, unused parameters, exceptions and freezing: nothing grows, and no bit differs from plain
PyTorch.
"""

import random
from typing import Any

import pytest

from tests.engine.lattice import CHOICES, ROWS, SIZES, SPECULATIVE_ROWS, check, row_id
from tests.engine.ranks import RankPool

ALL = [*ROWS, *SPECULATIVE_ROWS]
each_row = pytest.mark.parametrize("k", range(len(ALL)), ids=lambda k: row_id(ALL[k]))


def endure(ranks: RankPool, k: int, world_size: int, steps: int, seed: int) -> None:
    """Run one row for `steps`; hold what it keeps between looks constant once every buffer exists."""
    mode = ("unmanaged", "multi_backward")[(k + seed) % 2]
    spec: dict[str, Any] = ALL[k] | SIZES | {"accumulation_mode": mode, "gradient_clipping": 0.5}
    for held in ranks.run(world_size, "tests.engine.endurance:endure", spec, steps, seed):
        half = len(held) // 2
        assert max(held[half:]) - max(held[:half]) < 2048, f"{spec}: {held}"


@each_row
def test_a_short_run(ranks: RankPool, k: int) -> None:
    endure(ranks, k, 2, steps=24, seed=k)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_row
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_thousands_of_steps(ranks: RankPool, k: int, world_size: int) -> None:
    for seed in range(100, 103):
        endure(ranks, k, world_size, steps=1000, seed=seed)


def product(row: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Return every pair of accumulation and dtypes with every clipping, the other choices drawn at random."""
    draw = random.Random(seed)
    points = []
    for accumulation in CHOICES["accumulation"]:
        for dtypes in CHOICES["dtypes"]:
            for clipping in CHOICES["clipping"]:
                point = row | accumulation | dtypes | clipping
                for name in ("reduce_at", "sizes", "overlap", "residents", "optimizer"):
                    point |= draw.choice(CHOICES[name])
                points.append(point)
    return points


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_row
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("model", ["mlp", "gpt", "odd-together", "checkpointed", "wandering", "outside"])
def test_the_whole_lattice(ranks: RankPool, model: str, world_size: int, k: int) -> None:
    for point in product(ALL[k], seed=1000 * k + world_size):
        check(ranks, model, world_size, point)
