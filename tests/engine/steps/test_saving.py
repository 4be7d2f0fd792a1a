"""Checkpoints: random generators go on, weights load alone, and torch's own format is resharded."""

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from safetensors.torch import save as bytes_of

from tests.engine.steps.agreeing import heard
from tests.engine.steps.test_transactions import each_row
from tests.engine.steps.transacting import Spec, Values, engine_of, model, take_step
from zbench.engine import Engine
from zbench.engine.checkpoint import load, save, save_weights
from zbench.engine.checkpoint.distributed import DistributedState
from zbench.engine.checkpoint.files import write_stream
from zbench.engine.checkpoint.state import StateEntry
from zbench.testing.ranks import RankPool


def draws() -> list[float]:
    """Return the next number of every generator."""
    return [float(torch.rand(())), random.random(), float(np.random.rand()), float(np.random.randn())]


def resumed(group: dist.ProcessGroup, path: str, spec: Spec) -> bool:
    """Whether every rank's generators go on where they were saved."""
    seed = 10 + dist.get_rank(group)
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    draws()
    engine = engine_of(group, model(), spec)
    save(engine, path)
    expected = draws()
    draws()
    load(engine, path)
    again = draws()
    load(engine, path, rng=False)
    untouched = draws() != expected
    engine.close()
    return again == expected and untouched


def engine_with_more(group: dist.ProcessGroup, spec: Spec) -> Engine:
    """Return an engine on a model with a frozen parameter and a buffer."""
    net = model()
    net.get_parameter("4.bias").requires_grad_(False)
    net.register_buffer("seen", torch.zeros(3))
    return engine_of(group, net, spec)


def weights(group: dist.ProcessGroup, path: str, spec: Spec) -> tuple[bool, str]:
    """Save weights only; whether plain PyTorch loads them, bit for bit, and the error of a second save."""
    engine = engine_with_more(group, spec)
    take_step(engine, 0)
    save_weights(engine, path)
    message = heard(lambda: save_weights(engine, path))
    expected = engine.full_parameters()
    engine.close()
    plain = model()
    plain.register_buffer("seen", torch.ones(3))
    plain.load_state_dict(load_file(Path(path)))
    state = plain.state_dict()
    return all(torch.equal(state[n], v) for n, v in {**expected, "seen": torch.zeros(3)}.items()), message


def saved_by_torch(group: dist.ProcessGroup, path: str, spec: Spec, later: bool) -> Values:
    """Train two steps and save, asynchronously where `later`; return the state that was saved."""
    engine = engine_with_more(group, spec)
    for number in range(2):
        take_step(engine, number)
    engine.model.get_buffer("seen").fill_(3.5)
    expected = engine.state_dict()
    state = {"engine": DistributedState(engine, group)}
    how: dict[str, Any] = {"checkpoint_id": path, "process_group": group}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if later:
            writing: Any = dcp.async_save(state, **how)
            take_step(engine, 2)  # must not reach the file
            writing.result()
        else:
            dcp.save(state, **how)
    engine.close()
    return expected


def loaded_by_torch(group: dist.ProcessGroup, path: str, spec: Spec) -> tuple[Values, int]:
    """Return the state after loading, and the most elements of one tensor that this rank keeps."""
    engine = engine_with_more(group, spec)
    state = DistributedState(engine, group)
    parts = [v.to_local().numel() for v in state.state_dict().values() if hasattr(v, "to_local")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load({"engine": state}, checkpoint_id=path, process_group=group)
    values = engine.state_dict()
    take_step(engine, 2)
    engine.close()
    return values, max(parts, default=0)


CASES = f"{__name__}:"
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
        assert (tmp_path / "file").read_bytes() == bytes_of(tensors)


@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_torchs_format_loads_at_any_size_and_stage(ranks: RankPool, tmp_path: Path, later: bool) -> None:
    expected, *_ = ranks.run(2, CASES + "saved_by_torch", str(tmp_path / "here"), SHARDED, later)
    for world, spec in ((1, {"zero_stage": 0}), (3, {"zero_stage": 3}), (3, {"zero_stage": 1})):
        for values, most in ranks.run(world, CASES + "loaded_by_torch", str(tmp_path / "here"), spec):
            assert values.keys() == expected.keys()
            assert [k for k, v in expected.items() if not torch.equal(values[k], v)] == []
            assert most == (0 if world == 1 else -(-24 * 24 // world))
