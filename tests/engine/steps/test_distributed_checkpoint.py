"""Checkpoints of `torch.distributed.checkpoint`: sharded, resharded at loading, saved asynchronously."""

from pathlib import Path

import pytest
import torch

from zbench.testing.ranks import RankPool

CASES = "tests.engine.steps.distributing:"
SHARDED = {"zero_stage": 3, "offload_optimizer": "cpu"}


@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_a_state_of_two_ranks_loads_into_any_number_at_any_stage(
    ranks: RankPool, tmp_path: Path, later: bool
) -> None:
    expected, *_ = ranks.run(2, CASES + "saved", str(tmp_path / "here"), SHARDED, later)
    for world, spec in ((1, {"zero_stage": 0}), (2, SHARDED), (3, {"zero_stage": 3}), (3, {"zero_stage": 1})):
        for values, most in ranks.run(world, CASES + "loaded", str(tmp_path / "here"), spec):
            assert values.keys() == expected.keys()
            assert [k for k, v in expected.items() if not torch.equal(values[k], v)] == []
            assert most == (0 if world == 1 else -(-24 * 24 // world))
