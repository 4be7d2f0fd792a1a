"""Which parameters share a group, without ranks: sizes, dtypes and owners alone decide."""

import torch
from torch import Tensor, nn

from zbench.engine import build_engine
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.grouping import GroupPlan, module_groups
from zbench.spec.engine import EngineSpec

FLOAT, BFLOAT = torch.float32, torch.bfloat16


def infos(*parameters: nn.Parameter) -> list[ParamInfo]:
    return [ParamInfo(index, f"p{index}", parameter, 0) for index, parameter in enumerate(parameters)]


def members(plan: GroupPlan) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(group.parameters, plan.dtypes[group.dtype_group]) for group in plan.groups]


def test_modules_own_groups_and_small_parameters_stay_gathered_together() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    plan = module_groups(model, infos(*model.parameters()), FLOAT, threshold=3)
    assert members(plan) == [((2,), FLOAT), ((0,), FLOAT), ((3, 1), FLOAT)]
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
