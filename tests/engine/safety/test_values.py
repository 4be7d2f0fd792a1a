"""What is read from a model, copied from it, written to it: the values of plain PyTorch, or a refusal."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES, Plain, batch, same_steps
from zbench.engine import Engine, build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

SPECULATIVE = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
FAST = {"zero_stage": 3, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
ROWS = [*STAGES, SPECULATIVE, FAST]
both_sizes = pytest.mark.parametrize(
    "engine", [{}, {"param_persistence_threshold": 10_000}], ids=["sharded", "resident"], indirect=True
)
stage_3 = pytest.mark.parametrize("row", [{"zero_stage": 3}], ids=row_id)


@pytest.fixture(params=ROWS, ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def plain(engine: Engine, plain: Plain) -> Plain:
    """Return the engine's twin; both have taken two steps."""
    same_steps(engine, plain, 0, 1)
    return plain


@torch.no_grad()
def in_place(net: nn.Module) -> None:
    net.first.weight.mul_(0.5)
    net.last.bias.fill_(0.25)


def by_data(net: nn.Module) -> None:
    net.first.weight.data.mul_(0.5)


def by_new_data(net: nn.Module) -> None:
    net.first.weight.data = net.first.weight.data * 0.5


def by_loading(net: nn.Module) -> None:
    net.load_state_dict({n: v * 0.75 for n, v in net.state_dict().items()})


EDITS = (in_place, by_data, by_new_data, by_loading)


@both_sizes
@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
def test_an_edit_between_steps_counts(
    engine: Engine, plain: Plain, edit: Callable[[nn.Module], None]
) -> None:
    for net in (engine.model, plain.model):
        edit(net)
    assert_same(engine.full_parameters(), plain.values())
    for number in range(2):
        same_steps(engine, plain, number)


@pytest.mark.parametrize("engine", [{"dtype": "bfloat16"}], indirect=True)
def test_an_edit_in_bfloat16_changes_the_masters_of_what_it_changed_only(engine: Engine) -> None:
    for number in range(2):
        engine.backward(engine.model(batch(number).bfloat16()).float().square().mean())
        engine.step()
    before = engine.full_parameters()
    with torch.no_grad():
        engine.model.first.weight[0] = 0.5
    after = engine.full_parameters()
    assert torch.equal(after["first.weight"][0], torch.full((13,), 0.5))
    assert torch.equal(after["first.weight"][1:], before["first.weight"][1:])


def test_the_models_own_state_dict_is_whole(engine: Engine, plain: Plain) -> None:
    state = engine.model.state_dict()
    expected = plain.values()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert_same(state, expected)
    assert_same(torch.load(file), expected)
    same_steps(engine, plain, 4)


def test_assigned_parameters_are_refused(engine: Engine, plain: Plain) -> None:
    state = {n: torch.zeros_like(v) for n, v in plain.values().items()}
    with pytest.raises(UsageError, match="assign=True"):
        engine.model.load_state_dict(state, assign=True)
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 4)


READS: dict[str, Callable[[nn.Parameter], object]] = {
    "sum": lambda p: p.sum(),
    "linear": lambda p: torch.nn.functional.linear(torch.ones(1, 13), p),
    "data": lambda p: p.data,
    "numpy": lambda p: p.numpy(),
    "item": lambda p: p[0, 0].item(),
    "copied from": lambda p: torch.empty(24, 13).copy_(p),
    "pointer": lambda p: p.data_ptr(),
    "pickle": lambda p: pickle.dumps(p),
    "foreach": lambda p: torch._foreach_norm([p]),
    "operator": lambda p: torch.ops.aten.mm(torch.ones(1, 24), p),
    "in place": lambda p: p.add_(1),
    "new data": lambda p: setattr(p, "data", torch.zeros(24, 13)),
    "gradient": lambda p: torch.autograd.grad(torch.ones((), requires_grad=True).sum(), p),
}


@stage_3
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_released_weight_refuses(engine: Engine, read: Callable[[nn.Parameter], object]) -> None:
    parameter = next(iter(engine.model.parameters()))
    with pytest.raises(UsageError, match=r"'first.weight' are not on this rank now.*engine\.gathered"):
        read(parameter)


@stage_3
def test_a_released_weight_can_be_described(engine: Engine) -> None:
    p = next(iter(engine.model.parameters()))
    assert isinstance(p, nn.Parameter)
    assert (p.shape, p.stride(), p.numel()) == ((24, 13), (13, 1), 312)
    assert (p.dtype, p.device.type, p.requires_grad) == (torch.float32, "cpu", True)
    assert p.grad is None
    assert "not on this rank" in repr(p)
    assert torch.zeros_like(p).shape == p.shape
    assert sum(q.numel() for q in engine.model.parameters()) == 312 + 24 + 48 + 168 + 7
    engine.model.train().eval().requires_grad_(True)
    assert engine.model.to("cpu").to(torch.float32) is engine.model
    torch.optim.SGD(engine.model.parameters(), lr=1.0)


def test_gathered_reads_and_writes_and_can_be_nested(engine: Engine, plain: Plain) -> None:
    net, twin = engine.model, plain.model
    with engine.gathered(net):
        assert_same({n: p.detach().clone() for n, p in net.named_parameters()}, plain.values())
        with engine.gathered(net.first, write=True), torch.no_grad():
            net.first.weight.mul_(0.5)
            twin.first.weight.mul_(0.5)
        assert_same({n: p.detach().clone() for n, p in net.named_parameters()}, plain.values())
    with engine.gathered([net.last.bias], write=True):
        net.last.bias.data.fill_(2.0)
        twin.last.bias.data.fill_(2.0)
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 0, 1)


def test_gathered_refuses_what_it_cannot_do(engine: Engine, plain: Plain) -> None:
    for foreign in (nn.Linear(2, 2), nn.Parameter(torch.ones(2)), [torch.ones(2)]):
        with pytest.raises(UsageError, match="expected a module of the engine's model"):
            engine.gathered(foreign)  # type: ignore[arg-type]
    engine.backward(engine.model(batch(3)).square().mean())
    with pytest.raises(UsageError, match=r"call it after step\(\)"):
        engine.gathered(engine.model, write=True)
    with engine.gathered(engine.model):
        pass
    engine.step()
    plain.model(batch(3)).square().mean().backward()
    plain.step()
    assert_same(engine.full_parameters(), plain.values())


def test_a_closed_engine_leaves_ordinary_parameters_or_names_the_remedy(
    row: dict[str, Any], engine: Engine, plain: Plain
) -> None:
    values = engine.full_parameters()
    engine.close()
    p = next(iter(engine.model.parameters()))
    if row["zero_stage"] == 3:
        with pytest.raises(UsageError, match=r"engine was closed.*p\.data ="):
            p.sum()
        for name, q in engine.model.named_parameters():
            q.data = values[name].clone()
    assert all(type(q) is nn.Parameter for q in engine.model.parameters())
    assert "forward" not in vars(engine.model)
    assert torch.equal(engine.model(batch(1)), plain.model(batch(1)))
    again = build_engine(engine.model, EngineSpec())
    again.close()
