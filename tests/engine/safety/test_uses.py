"""Ways to use a model that are not one forward, one backward: the bits of plain PyTorch, or refused."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES, Loss, Plain, batch, build, by_forward, same_steps, step
from zbench.engine import Engine
from zbench.errors import UsageError


class Net(nn.Module):
    """Layers, a module that calls itself, and ways to use them outside of forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(13, 40)
        self.again = Again()
        self.last = nn.Linear(40, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(torch.tanh(self.first(x)), 2))

    def head(self, x: Tensor) -> Tensor:
        """Return what forward returns, without being it."""
        return self.last(self.again(torch.tanh(self.first(x)), 1))


class Again(nn.Module):
    """Holds its weight while it calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 40) / 7)
        self.inner = nn.Identity()

    def forward(self, x: Tensor, depth: int) -> Tensor:
        weight = self.weight
        if depth:
            x = self(x, depth - 1)
        return torch.tanh(self.inner(x) @ weight)


def by_another_method(net: Net, x: Tensor) -> Tensor:
    return net.head(x).square().mean()


def with_weights_read_before_and_after(net: Net, x: Tensor) -> Tensor:
    penalty = net.first.weight.square().sum() + net.again.weight.abs().sum()
    return net(x).square().mean() + 0.1 * (penalty + net.last.weight.square().sum())


def with_a_weight_and_an_evaluation(net: Net, x: Tensor) -> Tensor:
    penalty = net.first.weight.square().sum()
    with torch.no_grad():
        net(x)
    return net(x).square().mean() + 0.1 * penalty


def with_a_part_in_inference_mode(net: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = net(2 * x)
    first = net.first(x)
    with torch.inference_mode():
        gate = torch.sigmoid(net.first(3 * x))
    return (net.last(net.again(first * gate.clone(), 1)) - target.clone()).square().mean()


def twice(net: Net, x: Tensor) -> Tensor:
    return (net(x) + net(2 * x)).square().mean()


LOSSES: tuple[Loss, ...] = (by_another_method, with_weights_read_before_and_after, twice)
LOSSES += (with_a_weight_and_an_evaluation, with_a_part_in_inference_mode)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_a_loss_is_differentiated_however_it_is_computed(engine: Engine, plain: Plain, loss: Loss) -> None:
    same_steps(engine, plain, 0, 1, 2, loss=loss)


def test_the_sum_over_all_parameters_is_differentiated_inside_gathered(
    row: dict[str, Any], engine: Engine, plain: Plain
) -> None:

    def with_all(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean() + sum(p.square().sum() for p in net.parameters())

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        if row["zero_stage"] == 3 and net is engine.model:
            with pytest.raises(UsageError, match=r"'again.weight'|'first.weight'.*engine.gathered"):
                with_all(net, x)
        with engine.gathered(engine.model):
            return with_all(net, x)

    same_steps(engine, plain, 0, 1, 2, loss=loss)


def test_a_loss_of_before_the_update_cannot_be_differentiated_after_it(engine: Engine, plain: Plain) -> None:
    old = by_forward(engine.model, batch(7))
    step(engine, plain, 0)
    before = engine.full_parameters()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.backward(old)
    assert_same(engine.full_parameters(), before)
    same_steps(engine, plain, 0, 1, 2)


def test_an_activation_changed_in_place_is_an_error_as_in_torch(engine: Engine) -> None:
    engine.model.get_submodule("again.inner").register_forward_hook(lambda m, a, out: torch.tanh(out).mul_(2))
    loss = by_forward(engine.model, batch(0))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.backward(loss)


def test_outer_hooks_on_saved_tensors_are_honoured(engine: Engine, plain: Plain) -> None:
    packed: list[torch.Size] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        if net is plain.model:
            return by_forward(net, x)
        with save_on_cpu(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return by_forward(net, x)

    same_steps(engine, plain, 0, 1, loss=loss)
    assert torch.Size([5, 40]) in packed


def test_an_interrupt_in_forward_leaves_nothing_behind(engine: Engine, plain: Plain) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    step(engine, plain, 0)
    handle = engine.model.get_submodule("again.inner").register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.model(batch(0))
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    handle.remove()
    same_steps(engine, plain, 0, 1, 2)


def test_a_module_added_after_build_is_refused_by_name(engine: Engine, plain: Plain) -> None:
    step(engine, plain, 0)
    engine.model.added = nn.Linear(3, 3)
    for call in (engine.state_dict, engine.full_parameters):
        with pytest.raises(UsageError, match=r"'added.weight' was added.*build another engine"):
            call()
    with pytest.raises(UsageError, match=r"'added.weight' was added.*build another engine"):
        engine.backward(by_forward(engine.model, batch(0)))  # type: ignore[arg-type]
    del engine.model.added
    with pytest.raises(UsageError, match=r"add_param_group.*save a checkpoint, build another engine"):
        engine.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    same_steps(engine, plain, 0, 1, 2)


def test_a_model_is_copied_whole_or_refuses(row: dict[str, Any], engine: Engine, plain: Plain) -> None:
    step(engine, plain, 0)
    if row["zero_stage"] == 3:
        with pytest.raises(UsageError, match=r"engine\.gathered"):
            deepcopy(engine.model)
    with engine.gathered(engine.model):
        copy = deepcopy(engine.model)
    assert_same({n: p.detach() for n, p in copy.named_parameters()}, plain.values())
    assert all(type(p) is nn.Parameter for p in copy.parameters())
    assert torch.equal(copy(batch(1)), plain.model(batch(1)))
    copy(batch(1)).sum().backward()
    same_steps(engine, plain, 0, 1, 2)
    engine.close()
    assert copy.first.weight.grad is not None


@pytest.mark.parametrize("engine", [{"gradient_accumulation_steps": 2}], ids=["micro"], indirect=True)
def test_a_backward_that_failed_within_a_step_cannot_be_repeated_alone(engine: Engine, plain: Plain) -> None:
    def backward(number: int, *, fails: bool = False) -> None:
        loss = by_forward(engine.model, batch(number))  # type: ignore[arg-type]
        if fails:
            loss.register_hook(lambda gradient: 1 / 0)
        engine.backward(loss)

    with pytest.raises(ZeroDivisionError):
        backward(0, fails=True)  # nothing came before it: it may be repeated
    backward(0)
    with pytest.raises(ZeroDivisionError):
        backward(1, fails=True)
    for call in (lambda: backward(1), engine.step, lambda: backward(2)):
        with pytest.raises(UsageError, match=r"discarded the 1 before it.*engine.zero_grad\(\)"):
            call()
    engine.zero_grad()
    for number in range(2):
        backward(number)
        (by_forward(plain.model, batch(number)) / 2).backward()
    engine.step()
    plain.step()
    assert_same(engine.full_parameters(), plain.values())


def test_gradients_of_a_backward_that_failed_are_not_dropped_unseen(engine: Engine, plain: Plain) -> None:
    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    def backward(net: nn.Module, number: int, *, fails: bool = False) -> None:
        inner = net.get_submodule("again.inner")
        handle = inner.register_forward_hook(lambda m, a, out: out.register_hook(fail) and None)
        if not fails:
            handle.remove()
        loss = by_forward(net, batch(number))  # type: ignore[arg-type]
        handle.remove()
        (engine.backward if net is engine.model else Tensor.backward)(loss)

    same_steps(engine, plain, 0)
    before = engine.full_parameters()
    with pytest.raises(ZeroDivisionError):
        backward(engine.model, 1, fails=True)
    for call in (lambda: backward(engine.model, 2), engine.step):
        with pytest.raises(UsageError, match=r"discarded the gradients that it had.*engine.zero_grad\(\)"):
            call()
    assert_same(engine.full_parameters(), before)
    engine.zero_grad()
    same_steps(engine, plain, 1, 2)


def test_modules_exchanged_after_build_have_their_new_names_everywhere(engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    for net in (engine.model, plain.model):
        net.last, net.tail = nn.Identity(), net.last
        net.again, net.first = net.first, net.again

    def loss(net: Any, x: Tensor) -> Tensor:
        return net.tail(net.first(torch.tanh(net.again(x)), 1)).square().mean()

    plain.masters = {n: plain.masters[old] for n, old in RENAMED.items()}
    same_steps(engine, plain, 1, 2, loss=loss)
    state = engine.state_dict()
    prefix = "param."
    assert_same({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}, plain.values())
    engine.load_state_dict(state)
    same_steps(engine, plain, 3, loss=loss)


RENAMED = {"again.weight": "first.weight", "again.bias": "first.bias", "first.weight": "again.weight"}
RENAMED |= {"tail.weight": "last.weight", "tail.bias": "last.bias"}


def test_a_parameter_that_takes_the_name_of_one_that_is_gone_is_refused(engine: Engine, plain: Plain) -> None:
    first, engine.model.first = engine.model.first, engine.model.last
    with pytest.raises(UsageError, match=r"'first.bias' was taken out of the model.*put it back"):
        engine.state_dict()
    engine.model.first = first
    same_steps(engine, plain, 0, 1)


def test_what_is_taken_from_a_parameter_inside_gathered_is_of_that_time(
    row: dict[str, Any], engine: Engine, plain: Plain
) -> None:
    """At stage 3 torch cannot tell what refers to gathered memory, so `p.data` and `detach()` outlive it."""
    with engine.gathered(engine.model):
        weight = engine.model.first.weight  # type: ignore[union-attr]
        held = weight.data
        detached = weight.detach()
        before = weight.detach().clone()
    same_steps(engine, plain, 0, 1)
    expected = before if row["zero_stage"] == 3 else plain.values()["first.weight"]
    assert torch.equal(held, expected)
    assert torch.equal(detached, expected)
    if row["zero_stage"] == 3:
        held.zero_()
        same_steps(engine, plain, 2)


def test_swapping_a_parameter_with_a_tensor_is_refused(engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    weight = engine.model.first.weight
    state = plain.model.state_dict()  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"swap_tensors would replace a parameter"):
        torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(40, 13)))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(UsageError, match=r"load_state_dict would swap.*conversion\(False\)"):
            engine.model.load_state_dict(state)
        with pytest.raises((UsageError, RuntimeError)) as refused:
            engine.model.to(torch.float64)
        assert isinstance(refused.value.__cause__ or refused.value, UsageError)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    same_steps(engine, plain, 1)


GRADIENTS: dict[str, Callable[[nn.Module], object]] = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "another optimizer's step": lambda model: torch.optim.SGD(model.parameters(), 0.1).step(),
    "model.zero_grad": lambda model: model.zero_grad(),
    "a gradient is set": lambda model: setattr(next(model.parameters()), "grad", None),
}


@pytest.mark.parametrize("row", [*STAGES, {"zero_stage": 1, "compile": "aot_eager"}], ids=row_id)
@pytest.mark.parametrize("engine", [{"accumulation_mode": "multi_backward"}], ids=["several"], indirect=True)
@pytest.mark.parametrize("use", GRADIENTS)
def test_gradients_that_the_engine_holds_are_not_mistaken_for_none(
    row: dict[str, Any], engine: Engine, plain: Plain, use: str
) -> None:
    for number in range(2):
        GRADIENTS[use](engine.model)
        for micro in (3 * number, 3 * number + 1):
            engine.backward(by_forward(engine.model, batch(micro)), micro % 3 == 1)
            by_forward(plain.model, batch(micro)).backward()
            with pytest.raises(
                UsageError, match=r"holds the gradients.*gradient_clipping.*engine.zero_grad\(\)"
            ):
                GRADIENTS[use](engine.model)
        engine.step()
        plain.step()
    assert_same(engine.full_parameters(), plain.values())
    engine.close()
    GRADIENTS[use](nn.Linear(1, 1) if row["zero_stage"] == 3 else engine.model)


@pytest.mark.parametrize("row", STAGES, ids=row_id)
def test_one_engines_loss_goes_through_anothers_frozen_model(row: dict[str, Any]) -> None:
    first, second = nn.Linear(13, 40), nn.Linear(40, 1)
    trains, judges = build(deepcopy(first), row), build(deepcopy(second), row)
    plain = Plain(first)

    def judged(net: nn.Module, x: Tensor) -> Tensor:
        return by_forward(judges.model if net is trains.model else second, net(x))

    with pytest.raises(UsageError, match="freeze this model while another engine's loss goes through it"):
        trains.backward(judged(trains.model, batch(0)))
    trains.zero_grad()
    for net in (judges.model, second):
        net.requires_grad_(False)
    same_steps(trains, plain, 1, 2, loss=judged)
    for engine in (trains, judges):
        engine.close()
