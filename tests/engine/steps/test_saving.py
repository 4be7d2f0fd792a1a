"""Checkpoints: random generators go on, weights load alone, and torch's own format is resharded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.engine.steps.test_transactions import each_row
from zbench.engine.checkpoint.files import write_stream
from zbench.engine.checkpoint.state import StateEntry
from zbench.testing.ranks import RankPool

CASES = "tests.engine.steps.saving:"
SHARDED = {"zero_stage": 3, "offload_optimizer": "cpu"}


@each_row
def test_a_resumed_run_draws_the_numbers_of_a_continuous_one(
    ranks: RankPool, tmp_path: Path, row: dict[str, Any]
) -> None:
    assert all(ranks.run(2, CASES + "resumed", str(tmp_path / "runs" / "today"), row))


@each_row
def test_weights_alone_load_into_a_plain_model(ranks: RankPool, tmp_path: Path, row: dict[str, Any]) -> None:
    for same, message in ranks.run(2, CASES + "weights", str(tmp_path / "weights.safetensors"), row):
        assert same
        assert message.startswith("UsageError")


def test_a_file_has_the_bytes_that_the_library_writes(tmp_path: Path) -> None:
    for length in range(1, 9):
        tensors = {"a": torch.ones(3).bfloat16(), "n" * length: torch.arange(5), "z": torch.tensor(True)}
        entries = [StateEntry(k, t.dtype, t.shape, lambda t=t: t) for k, t in tensors.items()]  # type: ignore[misc]
        write_stream(entries, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == save(tensors)


@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_torchs_format_loads_at_any_size_and_stage(ranks: RankPool, tmp_path: Path, later: bool) -> None:
    expected, *_ = ranks.run(2, CASES + "saved_by_torch", str(tmp_path / "here"), SHARDED, later)
    for world, spec in ((1, {"zero_stage": 0}), (3, {"zero_stage": 3}), (3, {"zero_stage": 1})):
        for values, most in ranks.run(world, CASES + "loaded_by_torch", str(tmp_path / "here"), spec):
            assert values.keys() == expected.keys()
            assert [k for k, v in expected.items() if not torch.equal(values[k], v)] == []
            assert most == (0 if world == 1 else -(-24 * 24 // world))
