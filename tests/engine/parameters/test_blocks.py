"""Which parameters are gathered together: those of a module, of a whole block, and all small ones."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine import models
from tests.engine.lattice import check, row_id
from zbench.engine import Instruments, build_engine
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.grouping import blocks_of, module_groups
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

GPU = "tests.engine.cases:trajectory_with_gpu_sizes"
NEAR: list[dict[str, Any]] = [
    {},
    {"prefetch_bucket_size": 1, "param_persistence_threshold": 100},
    {"allgather_bucket_size": 700, "param_persistence_threshold": 0, "gradient_accumulation_steps": 2},
    {"dtype": "bfloat16", "param_persistence_threshold": 30, "gradient_clipping": 0.1},
    {"leaf_modules": ["blocks.1", "blocks.2.several.0"], "param_persistence_threshold": 0},
]
FAR: list[dict[str, Any]] = [
    {"offload_optimizer": "cpu", "offload_schedule": "speculative", "param_persistence_threshold": 0},
    {"offload_optimizer": "cpu", "offload_param": "cpu", "offload_ratio": 0.4, "dtype": "bfloat16"},
]


@pytest.mark.parametrize("keys", [*NEAR, *FAR], ids=row_id)
def test_whole_blocks_leave_the_bits_of_plain_pytorch(ranks: RankPool, keys: dict[str, Any]) -> None:
    world_size = 3 if keys in FAR else 2
    check(ranks, "stack", world_size, {"zero_stage": 3, **keys}, by=GPU)


@pytest.mark.parametrize("model", ["gpt", "checkpointed", "wandering", "outside"])
def test_models_without_blocks_do_too(ranks: RankPool, model: str) -> None:
    check(ranks, model, 2, {"zero_stage": 3, "param_persistence_threshold": 30}, by=GPU)


def names(model: nn.Module, most: int) -> list[str]:
    blocks = blocks_of(model, most)
    return [name for name, module in model.named_modules() if module in blocks]


def test_blocks_are_the_outermost_entries_of_lists() -> None:
    model = models.make("stack")
    assert names(model, 1 << 30) == [f"blocks.{k}" for k in range(5)]
    size = sum(p.numel() for p in model.get_submodule("blocks.0").parameters())
    assert names(model, size) == [f"blocks.{k}" for k in range(5)]
    within = [f"blocks.{k}.several.{n}" for k in range(5) for n in range(2)]
    assert names(model, size - 1) == within, "a block that is too large is gathered in parts"
    assert names(model, 0) == []
    backbone = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    most = names(nn.Sequential(backbone, nn.Linear(8, 2)), size)
    assert most == ["0.0", "0.1", "0.2", "1"], "no block is most of the model"


def test_a_block_that_recomputes_in_its_forward_is_not_kept() -> None:
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


def test_modules_own_groups_and_small_parameters_stay_together() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    infos = [ParamInfo(k, f"p{k}", p, 0) for k, p in enumerate(model.parameters())]
    plan = module_groups(model, infos, torch.float32, threshold=3)
    assert [group.parameters for group in plan.groups] == [(2,), (0,), (3, 1)]
    assert plan.resident == {2}


def test_moments_round_stochastically_alike_however_parameters_are_grouped() -> None:
    moments = {"optimizer": {"moments_dtype": "bfloat16", "moments_rounding": "stochastic"}}

    def state(**keys: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20))
        engine = build_engine(net, EngineSpec.model_validate(moments | keys))
        for _ in range(2):
            engine.backward(net(torch.ones(3, 30)).square().sum())
            engine.step()
        whole = engine.state_dict()
        engine.close()
        return whole

    one = state(zero_stage=0)
    for other in (
        state(zero_stage=1, sub_group_size=256),
        state(zero_stage=3, param_persistence_threshold=50),
    ):
        assert all(torch.equal(value, other[name]) for name, value in one.items())
