"""Every stage, memory, mode and size leaves the bits of plain PyTorch: parameters, moments and norms."""

import pytest
import torch

from tests.engine.lattice import CHOICES, ROWS, check, points
from tests.engine.ranks import RankPool


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("row", range(len(ROWS)), ids=lambda k: "-".join(str(v) for v in ROWS[k].values()))
def test_the_lattice_is_bit_identical_to_plain_pytorch(ranks: RankPool, row: int, world_size: int) -> None:
    for model in ("mlp", "gpt", "odd-together"):
        for point in points(ROWS[row], seed=10 * row + world_size, count=2 if model == "gpt" else 3):
            check(ranks, model, world_size, point)


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_that_are_sent_without_a_copy_have_the_same_bits(ranks: RankPool, world_size: int) -> None:
    for row in ROWS:
        check(ranks, "wide", world_size, row | {"gradient_clipping": 0.1, "reduce_bucket_size": 140_000})
        check(ranks, "wide", world_size, row | {"accumulation_mode": "unmanaged", "dtype": "bfloat16"})


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_parameters_used_on_some_ranks_only_count_as_zero_on_the_others(ranks: RankPool, stage: int) -> None:
    for accumulation in CHOICES["accumulation"]:
        check(ranks, "odd", 3, {"zero_stage": stage, "gradient_clipping": 0.1} | accumulation)


@pytest.mark.parametrize("stage", [1, 2])
def test_upstreams_scenario_four_backwards_with_and_without_offload(ranks: RankPool, stage: int) -> None:
    """3-layer MLP, Adam, lr 1e-3, 4 backwards a step: the difference that offload makes is exactly zero."""
    spec = {
        "zero_stage": stage,
        "optimizer": {"name": "adam", "lr": 1e-3, "weight_decay": 0.0},
        "accumulation_mode": "unmanaged",
    }
    runs = [
        ranks.run(
            2, "tests.engine.cases:train", "mlp", spec | {"offload_optimizer": o}, steps=5, backwards=4
        )[0]
        for o in ("none", "cpu")
    ]
    for name, value in runs[0].parameters.items():
        assert torch.equal(value, runs[1].parameters[name]), name
    check(ranks, "mlp", 2, spec | {"backwards": 4})
