"""What is read from a model, copied from it, written to it: the values of plain PyTorch, or a refusal."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES, Plain, batch, same_steps, step
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
    net.norm.weight.data.clamp_(0.9, 1.0)


def by_new_data(net: nn.Module) -> None:
    net.first.weight.data = net.first.weight.data * 0.5


def by_loading(net: nn.Module) -> None:
    net.load_state_dict({n: v * 0.75 for n, v in net.state_dict().items()})


def by_loading_a_part(net: nn.Module) -> None:
    net.first.load_state_dict({"weight": torch.full((24, 13), 0.125), "bias": torch.zeros(24)})


def by_initializing(net: nn.Module) -> None:
    nn.init.constant_(net.last.weight, 0.0625)


EDITS = (in_place, by_data, by_new_data, by_loading, by_loading_a_part, by_initializing)


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


def test_an_edit_before_the_forward_of_a_step_is_seen_by_it(engine: Engine, plain: Plain) -> None:
    for net in (engine.model, plain.model):
        in_place(net)
    same_steps(engine, plain, 5)


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
    "detach": lambda p: p.detach(),
    "numpy": lambda p: p.numpy(),
    "tolist": lambda p: p.tolist(),
    "item": lambda p: p[0, 0].item(),
    "clone": lambda p: p.clone(),
    "copied from": lambda p: torch.empty(24, 13).copy_(p),
    "to": lambda p: p.to(torch.float64),
    "pointer": lambda p: p.data_ptr(),
    "storage": lambda p: p.untyped_storage(),
    "pickle": lambda p: pickle.dumps(p),
    "vector": lambda p: parameters_to_vector([p]),
    "foreach": lambda p: torch._foreach_norm([p]),
    "operator": lambda p: torch.ops.aten.mm(torch.ones(1, 24), p),
    "comparison": lambda p: bool((p == p).all()),
    "in place": lambda p: p.add_(1),
    "new data": lambda p: setattr(p, "data", torch.zeros(24, 13)),
    "initialization": lambda p: nn.init.normal_(p),
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
    assert (p.shape, p.dtype, p.device.type, p.numel(), p.ndim) == ((24, 13), torch.float32, "cpu", 312, 2)
    assert (p.stride(), p.is_contiguous(), p.element_size(), len(p)) == ((13, 1), True, 4, 24)
    assert p.requires_grad
    assert p.grad is None
    assert "not on this rank" in repr(p)
    assert {p: 1}[p] == 1
    assert torch.zeros_like(p).shape == p.shape
    p.requires_grad_(False)
    p.requires_grad = True
    p.grad = torch.zeros(24, 13)
    engine.model.zero_grad()
    assert p.grad is None
    assert sum(q.numel() for q in engine.model.parameters()) == 312 + 24 + 48 + 168 + 7
    engine.model.train().eval().requires_grad_(True)
    assert engine.model.to("cpu").to(torch.float32) is engine.model
    torch.optim.SGD(engine.model.parameters(), lr=1.0)


def test_a_functional_call_uses_the_values_that_it_is_given(engine: Engine, plain: Plain) -> None:
    parameters = {n: v * 2 for n, v in plain.values().items()}
    expected = torch.func.functional_call(plain.model, parameters, (batch(1),))
    assert torch.equal(torch.func.functional_call(engine.model, parameters, (batch(1),)), expected)
    same_steps(engine, plain, 3)


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


@both_sizes
def test_an_exception_inside_gathered_writes_nothing(engine: Engine, plain: Plain) -> None:
    with pytest.raises(KeyError), engine.gathered(engine.model, write=True), torch.no_grad():  # noqa: PT012
        engine.model.first.weight.zero_()
        engine.model.last.bias.data.fill_(4.0)
        raise KeyError
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 3)


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


def test_a_step_inside_gathered_shows_the_new_values(engine: Engine, plain: Plain) -> None:
    with engine.gathered(engine.model):
        step(engine, plain, 3)
        assert_same({n: p.detach().clone() for n, p in engine.model.named_parameters()}, plain.values())
    assert_same(engine.full_parameters(), plain.values())


def test_a_closed_engine_leaves_ordinary_parameters_or_says_what_is_missing(
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
