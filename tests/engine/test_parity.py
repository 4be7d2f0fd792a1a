"""Every stage, offload, clipping, accumulation and bucket size leaves the bits of plain PyTorch."""

import itertools
from functools import cache
from typing import Any

import pytest
import torch

from tests.engine import models
from tests.engine.plain import PlainTrainer, Trajectory
from tests.engine.ranks import RankPool

STEPS = 3
ROWS = [(0, "none"), (1, "none"), (1, "cpu"), (2, "none"), (2, "cpu")]


@cache
def reference(
    model: str, world_size: int, backwards: int, options: tuple[tuple[str, Any], ...]
) -> Trajectory:
    """Return the plain trajectory; cached, since many engine configurations share one."""
    trainer = PlainTrainer(models.make(model), world_size=world_size, optimizer={"lr": 1e-3}, **dict(options))
    for step in range(STEPS):
        micros = range(backwards)
        trainer.step(
            models.loss,
            [[models.batch(model, step, micro, r) for r in range(world_size)] for micro in micros],
        )
    return trainer.trajectory()


def assert_same_bits(result: Trajectory, expected: Trajectory) -> None:
    """Parameters, first moments and (where computed) gradient norms are equal to the bit."""
    for name, value in expected.parameters.items():
        assert torch.equal(result.parameters[name], value), name
    for name, value in expected.moments.items():
        assert torch.equal(result.moments[name], value), f"exp_avg of {name}"
    assert result.norms == expected.norms or set(result.norms) == {None}


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("stage", "offload"), [(0, "none"), (1, "none"), (1, "cpu"), (2, "none"), (2, "cpu")]
)
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_same_bits_as_plain_pytorch(
    ranks: RankPool, model: str, stage: int, offload: str, world_size: int
) -> None:
    """Crossed with clipping, accumulation, bucket size and dtype."""
    lattice = itertools.product([0.0, 0.1], [1, 3], [1, 1500, 10**8], ["float32", "bfloat16"])
    for clipping, backwards, bucket, dtype in lattice:
        spec = {
            "zero_stage": stage,
            "offload_optimizer": offload,
            "gradient_clipping": clipping,
            "gradient_accumulation_steps": backwards,
            "reduce_bucket_size": bucket,
            "dtype": dtype,
        }
        options = {"max_norm": clipping, "divisor": backwards, "dtype": dtype, "each_backward": stage >= 2}
        expected = reference(model, world_size, backwards, tuple(options.items()))
        for result in ranks.run(world_size, "tests.engine.cases:train", model, spec, steps=STEPS):
            assert_same_bits(result, expected)
