"""A step of torch's wrappers in one process: what is reduced, clipped, held and returned."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zbench.engine.parameters.deferred import sharded_init
from zbench.errors import UsageError
from zbench.peers import ddp, fsdp2
from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec


def spec_of(**keys: Any) -> EngineSpec:
    return EngineSpec.model_validate({"engine": "ddp", "zero_stage": 0, **keys})


def small() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 2), nn.GELU(), nn.Linear(2, 1))


def plain(spec: EngineSpec, announced: list[bool]) -> tuple[nn.Module, TorchEngine]:
    model = small()
    adam = TorchAdam.of(model, spec)
    named = dict(model.named_parameters())
    return model, TorchEngine(model, named, adam.make(), spec, set_reducing=announced.append)


def test_only_the_last_counted_backward_reduces_to_the_mean() -> None:
    announced: list[bool] = []
    model, engine = plain(spec_of(gradient_accumulation_steps=3), announced)
    x = torch.ones(2, 4)
    (expected,) = torch.autograd.grad(model(x).sum(), [model[0].weight])
    for last in (False, False, True):
        with pytest.raises(UsageError):
            engine.step()
        assert announced[-1] is last
        engine.backward(model(x).sum())
    torch.testing.assert_close(model[0].weight.grad, expected)
    engine.step()
    assert announced[-1] is False
    assert model[0].weight.grad is None


@pytest.mark.parametrize("keys", [{"reduce_at": "each_backward"}, {"accumulation_mode": "multi_backward"}])
def test_every_backward_reduces_where_each_might_be_the_last(keys: dict[str, Any]) -> None:
    announced: list[bool] = []
    steps = {} if "accumulation_mode" in keys else {"gradient_accumulation_steps": 2}
    model, engine = plain(spec_of(**keys, **steps), announced)
    engine.backward(model(torch.ones(2, 4)).sum(), *([] if steps else [False]))
    assert announced == [True, True]


def test_a_norm_at_the_limit_is_not_clipped() -> None:
    spec = spec_of(gradient_clipping=0.5)
    model = nn.Linear(1, 1, bias=False)
    named = dict(model.named_parameters())
    engine = TorchEngine(model, named, TorchAdam.of(model, spec).make(), spec, set_reducing=lambda _: None)
    engine.backward(model(torch.tensor([0.5])).sum())
    info = engine.step()
    assert (info.grad_norm, info.clipped) == (0.5, False)


def test_what_is_held_and_returned() -> None:
    model, engine = plain(spec_of(param_groups={"0.*": {"frozen": True}}), [])
    assert engine.first_moments() == {}
    engine.backward(model(torch.ones(2, 4)).sum())
    assert [id(grad) for grad in engine.gradients()] == [id(p.grad) for p in model[2].parameters()]
    engine.step()
    assert engine.gradients() == []
    whole = engine.full_parameters()
    assert all(torch.equal(whole[name], p) for name, p in model.named_parameters())
    assert all(whole[name].data_ptr() != p.data_ptr() for name, p in model.named_parameters())
    assert set(engine.first_moments()) == {"2.weight", "2.bias"}
    steps = 2 * 4  # a step count of 4 bytes a parameter
    held = engine.memory_by_category()
    assert held == {"parameters": 13 * 4, "gradients": 3 * 4, "moments": 2 * 3 * 4 + steps}


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)])
def test_the_optimizer_is_torchs_fused_with_the_specs_keys(name: str, kind: Any) -> None:
    model = small()
    optimizer = TorchAdam.of(model, spec_of(optimizer={"name": name, "lr": 0.25, "amsgrad": True})).make()
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["amsgrad"], group["fused"]) == (0.25, True, True)
    assert group["params"] == list(model.parameters())


@pytest.mark.parametrize(("elements", "mebibytes"), [(None, None), (1000, 1), (3 << 18, 3)])
def test_ddp_is_made_as_its_guide_recommends(
    monkeypatch: pytest.MonkeyPatch, elements: int | None, mebibytes: int | None
) -> None:
    monkeypatch.setattr(ddp, "DistributedDataParallel", lambda model, **keys: keys)
    assert ddp.wrap(small(), spec_of(reduce_bucket_size=elements), None) == {
        "process_group": None,
        "bucket_cap_mb": mebibytes,
        "gradient_as_bucket_view": True,
        "broadcast_buffers": False,
    }


@pytest.mark.parametrize("where", ["none", "cpu"])
@pytest.mark.usefixtures("alone")
def test_fsdp_takes_a_layer_made_in_parts(where: str) -> None:
    torch.manual_seed(3)  # draws what `small` draws
    with sharded_init():
        in_parts = nn.Sequential(nn.Linear(4, 2))
    model = nn.Sequential(*in_parts, nn.GELU(), nn.Linear(2, 1))
    engine = fsdp2.build_engine(model, spec_of(engine="fsdp2", zero_stage=3, offload_optimizer=where))
    values = engine.full_parameters()
    assert all(torch.equal(values[name], p) for name, p in small().named_parameters())


@pytest.mark.parametrize(("stage", "is_kept"), [(2, True), (3, False)])
@pytest.mark.usefixtures("alone")
def test_fsdp_of_stage_2_keeps_gathered_weights_for_backward(stage: int, is_kept: bool) -> None:
    model = fsdp2.build_engine(small(), spec_of(engine="fsdp2", zero_stage=stage)).module
    model(torch.ones(2, 4)).sum()
    weights = [layer.weight for layer in (model[0], model[2])]
    assert [isinstance(weight, DTensor) for weight in weights] == [not is_kept] * 2


def test_fsdps_units_are_entries_of_lists_with_parameters() -> None:
    model = small()
    assert fsdp2._blocks(model) == [model[0], model[2]]
    nested = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)]), "head": nn.Linear(1, 1)})
    assert fsdp2._blocks(nested) == [nested["layers"][0]]
