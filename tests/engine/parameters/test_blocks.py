"""Whole blocks are gathered at once where a device asks for it, whatever a model does with them."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.engine import models
from tests.engine.lattice import check
from zbench.engine import Instruments, build_engine
from zbench.engine.parameters.grouping import blocks_of
from zbench.engine.parameters.sharded import GroupState, ShardedParameters
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

EVERYTHING = 1 << 30
GPU = "tests.engine.cases:trajectory_with_gpu_sizes"
NEAR: list[dict[str, Any]] = [
    {},
    {"param_persistence_threshold": 0},
    {"prefetch_bucket_size": 1, "param_persistence_threshold": 100},
    {"overlap_comm": False, "param_persistence_threshold": 0},
    {"reduce_bucket_size": 900, "param_persistence_threshold": 0},
    {"allgather_bucket_size": 700, "param_persistence_threshold": 0, "gradient_accumulation_steps": 2},
    {"dtype": "bfloat16", "param_persistence_threshold": 30, "gradient_clipping": 0.1},
    {"leaf_modules": ["blocks.1", "blocks.2.several.0"], "param_persistence_threshold": 0},
]
FAR: list[dict[str, Any]] = [
    {"offload_optimizer": "cpu", "param_persistence_threshold": 0},
    {"offload_param": "cpu", "param_persistence_threshold": 0, "gradient_accumulation_steps": 2},
    {"offload_optimizer": "cpu", "offload_schedule": "speculative", "param_persistence_threshold": 0},
    {"offload_optimizer": "cpu", "offload_param": "cpu", "offload_ratio": 0.4, "dtype": "bfloat16"},
]


@pytest.mark.parametrize("keys", [*NEAR, *FAR], ids=lambda keys: "-".join(map(str, keys.values())))
def test_whole_blocks_leave_the_bits_of_plain_pytorch(ranks: RankPool, keys: dict[str, Any]) -> None:
    world_size = 3 if keys in FAR else 2
    check(ranks, "stack", world_size, {"zero_stage": 3, **keys}, by=GPU)


@pytest.mark.parametrize(
    "model", ["gpt", "odd-together", "checkpointed", "recomputing", "wandering", "mixed", "outside"]
)
def test_models_without_blocks_do_too(ranks: RankPool, model: str) -> None:
    check(ranks, model, 2, {"zero_stage": 3, "param_persistence_threshold": 30}, by=GPU)


def names(model: nn.Module, most: int = EVERYTHING) -> list[str]:
    blocks = blocks_of(model, most)
    return [name for name, module in model.named_modules() if module in blocks]


def test_the_blocks_are_the_outermost_entries_of_lists_that_are_small_enough() -> None:
    model = models.make("stack")
    assert names(model) == [f"blocks.{k}" for k in range(5)]
    size = sum(p.numel() for p in model.get_submodule("blocks.0").parameters())
    assert names(model, size) == [f"blocks.{k}" for k in range(5)]
    within = [f"blocks.{k}.several.{n}" for k in range(5) for n in range(2)]
    assert names(model, size - 1) == within, "a block that is too large is gathered in parts"
    assert names(model, 0) == []


def test_no_block_is_most_of_the_model() -> None:
    backbone = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    assert names(nn.Sequential(backbone, nn.Linear(8, 2))) == ["0.0", "0.1", "0.2", "1"]


def test_a_list_in_a_list_is_no_block() -> None:
    lists = nn.ModuleList(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(3))
    assert names(lists) == [f"{k}.{n}" for k in range(3) for n in range(2)]


def test_a_block_is_one_group_that_is_whole_while_it_runs_and_the_next_is_begun() -> None:
    model = models.make("stack")
    spec = EngineSpec(zero_stage=3, param_persistence_threshold=0)
    engine = build_engine(model, spec, instruments=Instruments(device_type="cuda"))
    store = engine._core.parameters
    assert isinstance(store, ShardedParameters)
    of = {m.info.name.rpartition(".")[0]: group for group in store.groups for m in group.members}
    block, following = of["blocks.2.up"], of["blocks.3.down"]
    assert {m.info.name.split(".")[1] for m in block.members} == {"2"}
    states: list[tuple[GroupState, GroupState]] = []
    model.get_submodule("blocks.2.up").register_forward_hook(
        lambda *_: states.append((block.state, following.state))  # type: ignore[func-returns-value]
    )
    data = models.batch("stack", 1, 0, 0)
    for _ in range(2):
        states.clear()
        engine.backward(models.loss(model, data))
        engine.step()
    assert states
    assert all(now is GroupState.IN_USE for now, _ in states)
    assert states[0][1] is not GroupState.SHARDED
    assert block.state is GroupState.SHARDED
    engine.close()
    assert torch.is_tensor(next(model.parameters()))


def test_a_block_that_computes_again_within_its_forward_is_not_kept() -> None:
    """It does so in backward, in no module's call."""
    model = models.make("recomputing")
    keys = {"param_persistence_threshold": 0, "prefetch_bucket_size": 1}
    spec = EngineSpec.model_validate({"zero_stage": 3, **keys})
    engine = build_engine(model, spec, instruments=Instruments(device_type="cuda"))
    store = engine._core.parameters
    seen = list[int]()
    assert isinstance(store, ShardedParameters)
    for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        norm.register_forward_hook(
            lambda *_: seen.append(sum(group.is_whole for group in store.groups))  # type: ignore[func-returns-value]
        )
    for _ in range(3):
        engine.backward(models.loss(model, models.batch("recomputing", 1, 0, 0)))
        engine.step()
    engine.close()
    assert len(seen) == 3 * 2 * 7
    assert max(seen) <= 3  # the one before, this one, and the next
