"""Every stage, memory, mode and size leaves the bits of plain PyTorch: parameters, moments and norms."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.engine.covering import Point, by_default, covering
from tests.engine.lattice import (
    ALL,
    CHOICES,
    PLACES,
    ROWS,
    SPECULATIVE_ROWS,
    check,
    row_id,
)
from zbench.testing.ranks import RankPool

FLOAT16 = {"dtype": "float16", "loss_scale_window": 1}
PAIRS = covering(
    {
        "row": range(len(ALL)),
        "world_size": [1, 2, 3, 4],
        "model": ["mlp", "gpt", "odd-together"],
        **CHOICES,
        "clipping": [*CHOICES["clipping"], {"gradient_clipping": 1e6}],
        "dtypes": [*CHOICES["dtypes"], FLOAT16],
    },
    2,
    seed=3,
)


def check_point(ranks: RankPool, row: dict[str, Any], point: Point, place: str = "") -> None:
    """Check a row with the choices of a point, whose other entries are a model and a number of ranks."""
    for name in (*CHOICES, "dtypes"):
        row = row | point[name]
    check(ranks, point["model"] + place, point["world_size"], row)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("k", range(len(PAIRS)), ids=lambda k: f"{row_id(ALL[PAIRS[k]['row']])}-{k}")
def test_every_pair_of_choices_is_bit_identical_to_plain_pytorch(ranks: RankPool, k: int, place: str) -> None:
    """`make soak` runs every three of them. Bits are compared by `torch.equal` (`lattice.compare`)."""
    check_point(ranks, ALL[PAIRS[k]["row"]], PAIRS[k], place)


SHARDED = [row for row in ROWS if row["zero_stage"]] + SPECULATIVE_ROWS
HYBRID = covering(
    {"row": range(len(SHARDED)), "groups": [(4, 2), (4, 1), (2, 1)], "model": ["gpt", "mlp"], **CHOICES},
    2,
    seed=5,
)


@pytest.mark.parametrize("k", by_default(lambda k: k < len(SHARDED), [(k,) for k in range(len(HYBRID))]))
def test_shard_groups_with_replicas_are_bit_identical_to_plain_pytorch(ranks: RankPool, k: int) -> None:
    world_size, group = HYBRID[k]["groups"]
    row = SHARDED[HYBRID[k]["row"]] | {"shard_group_size": group}
    check_point(ranks, row, HYBRID[k] | {"world_size": world_size})


@pytest.mark.parametrize("k", range(len(SHARDED)))
def test_replicas_that_send_without_a_copy_have_the_same_bits(ranks: RankPool, k: int) -> None:
    check(ranks, "wide", 2, SHARDED[k] | {"shard_group_size": 1})


@pytest.fixture(scope="module")
def many() -> Iterator[RankPool]:
    """Return a pool of more ranks than others need."""
    pool = RankPool(7)
    yield pool
    pool.close()


@pytest.mark.parametrize(("world_size", "group"), [(5, 1), (7, 7)])
def test_odd_numbers_of_ranks_and_of_shards(many: RankPool, world_size: int, group: int) -> None:
    row = SHARDED[(world_size + group) % len(SHARDED)] | {"shard_group_size": group}
    check(many, "odd-together", world_size, row | {"gradient_clipping": 0.1})


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.check)])
def test_gradients_sent_without_a_copy_have_the_same_bits(ranks: RankPool, turn: int) -> None:
    """Two ranks and four take turns, so that each meets every way, and each way every row."""
    ways = [
        {"gradient_clipping": 0.1, "reduce_bucket_size": 140_000},
        {"accumulation_mode": "unmanaged", "dtype": "bfloat16"},
    ]
    for k, row in enumerate(ROWS):
        for way, choice in enumerate(ways):
            check(ranks, "wide", (2, 4)[(k + way + turn) % 2], row | choice)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_parameters_unused_on_some_ranks_count_as_zero_there(ranks: RankPool, stage: int) -> None:
    for accumulation in CHOICES["accumulation"]:
        check(ranks, "odd", 3, {"zero_stage": stage, "gradient_clipping": 0.1} | accumulation)


@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("stage", [1, 2])
def test_upstreams_scenario_four_backwards_with_and_without_offload(
    ranks: RankPool, stage: int, offload: str
) -> None:
    """3-layer MLP, Adam, lr 1e-3, 4 backwards a step: the difference that offload makes is exactly zero."""
    adam = {"name": "adam", "lr": 1e-3, "weight_decay": 0.0}
    mode = {"accumulation_mode": "unmanaged", "backwards": 4}
    row = {"zero_stage": stage, "offload_optimizer": offload, "optimizer": adam}
    check(ranks, "mlp", 2, row | mode, steps=5)


MIXED = {
    "world_size": [1, 2, 3, 4],
    "model": ["mlp", "gpt", "odd-together", "checkpointed", "wandering", "outside", "mixed"],
    **CHOICES,
    "dtypes": [*CHOICES["dtypes"], FLOAT16],
}


@cache
def mixed() -> list[Point]:
    return covering(MIXED, 3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world_size", MIXED["world_size"])
@pytest.mark.parametrize("k", range(len(ALL)), ids=lambda k: row_id(ALL[k]))
def test_every_three_choices_of_the_lattice(ranks: RankPool, k: int, world_size: int) -> None:
    """Some 370 points, the same in every row, so that most rows find their reference computed."""
    for point in mixed():
        if point["world_size"] == world_size:
            check_point(ranks, ALL[k], point)
