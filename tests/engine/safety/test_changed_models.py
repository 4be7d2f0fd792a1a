"""A model that changes after the build (memory, forward, groups): it counts, or is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.utils import parametrizations, parametrize

from tests.engine.safety.plainly import Net, Plain, batch, build, by_forward, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError
from zbench.testing.ranks import RankPool

Make = Callable[[], Any]
Edit = Callable[[Any], object]
Twins = Callable[..., tuple[Engine, Plain]]


class Symmetric(nn.Module):
    """A parametrization that can be assigned to."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, a: Tensor) -> Tensor:
        return a.triu()


def squares() -> Any:
    """Return a model with a square layer, which a parametrization of any kind fits."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 7))


def parametrized() -> Any:
    net = squares()
    register(net)
    return net


def register(net: Any) -> None:
    parametrize.register_parametrization(net[2], "weight", Symmetric())


def assign(net: Any) -> None:
    net[2].weight = torch.eye(24) * 0.3


def make_orthogonal(net: Any) -> None:
    parametrizations.orthogonal(net[2])


def take_off(net: Any) -> None:
    parametrize.remove_parametrizations(net[2], "weight", leave_parametrized=True)


@torch.no_grad()
def set_memory(net: Any) -> None:
    net[2].weight.set_(torch.full((24, 24), 0.01))


def set_transposed_data(net: Any) -> None:
    net[2].weight.data = net[2].weight.data.t()


EDITS: list[tuple[Make, Edit]] = [
    (parametrized, assign),
    (parametrized, take_off),
    (squares, register),
    (squares, make_orthogonal),
    (squares, set_memory),
    (squares, set_transposed_data),
]


@pytest.mark.parametrize(("make", "edit"), EDITS, ids=lambda f: f.__name__)
def test_values_in_other_memory_count(twins: Twins, make: Make, edit: Edit) -> None:
    engine, plain = twins(make)
    same_steps(engine, plain, 0, 1)
    with engine.gathered(engine.model):
        edit(engine.model)
    edit(plain.model)
    masters = {_plain_name(name): master for name, master in plain.masters.items()}
    plain.masters = {name: masters[_plain_name(name)] for name, _ in plain.model.named_parameters()}
    same_steps(engine, plain, 2, 3)


def _plain_name(name: str) -> str:
    """Return the name of a weight without its parametrization."""
    return name.replace("parametrizations.weight.original", "weight")


def test_a_weight_that_is_transposed_in_place_is_refused(twins: Twins) -> None:
    engine, _ = twins(squares)
    with torch.no_grad(), pytest.raises(UsageError, match=r"'2.weight' as it was.*strides \[1, 24\]"):  # noqa: PT012
        with engine.gathered(engine.model):
            engine.model.get_parameter("2.weight").t_()
        engine.full_parameters()


def halved(self: nn.Linear, x: Tensor) -> Tensor:
    return nn.functional.linear(x, self.weight, self.bias) * 0.5


class Halved(nn.Linear):
    """Another class for a layer."""

    forward = halved


class Own(nn.Linear):
    """A class whose forward a test exchanges."""


def exchange_class(net: Any) -> None:
    net.last.__class__ = Halved


def exchange_forward_of_class(net: Any) -> None:
    assert isinstance(net.last, Own)
    Own.forward = halved  # type: ignore[method-assign, assignment]


def own() -> Net:
    net = Net()
    net.last = Own(24, 7)
    return net


def traced() -> nn.Module:
    return fx.symbolic_trace(nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 7)))


def recompile(net: Any) -> None:
    tanh = next(node for node in net.graph.nodes if node.target == "1")
    with net.graph.inserting_after(tanh):
        relu = net.graph.call_function(torch.relu, (tanh,))
    tanh.replace_all_uses_with(relu)
    relu.args = (tanh,)
    net.recompile()


@pytest.mark.parametrize(
    ("make", "edit"),
    [(own, exchange_forward_of_class), (Net, exchange_class), (traced, recompile)],
    ids=lambda f: f.__name__,
)
def test_a_forward_that_is_exchanged_after_the_build_runs(
    twins: Twins, make: Make, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "forward", nn.Linear.forward)  # restored after the test

    def seeded() -> Any:
        torch.manual_seed(5)
        return make()

    engine, plain = twins(seeded)
    same_steps(engine, plain, 0)
    for net in (engine.model, plain.model):
        edit(net)
    same_steps(engine, plain, 1, 2)


def test_a_model_that_takes_no_hooks_is_refused_and_stays_as_it_is(row: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Linear(13, 24), torch.jit.script(nn.Linear(24, 7)))
    with pytest.raises(UsageError, match=r"'1' is a TorchScript module.*build the engine on the module"):
        build(net, row)
    check_untouched(net)


def check_untouched(net: nn.Module) -> None:
    """Assert that the model is plain PyTorch's."""
    by_forward(net, batch(0)).backward()
    assert all(type(p) is nn.Parameter and p.grad is not None for p in net.parameters())


class Stubborn(nn.Linear):
    """Fails when a hook is registered on it."""

    def register_load_state_dict_pre_hook(self, hook: Any) -> Any:
        raise RuntimeError("no hooks here")


def test_a_build_that_fails_while_it_attaches_leaves_the_model_as_it_was(row: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Linear(13, 24), Stubborn(24, 7))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(RuntimeError, match="no hooks here"):
        build(net, row)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    check_untouched(net)
    assert not any("forward" in vars(module) for module in net.modules())


class Saving(Net):
    """Reads a weight as an attribute, while what autograd saves is kept by `save_on_cpu`."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        with save_on_cpu():
            return torch.tanh(h @ self.last.weight.t())


def test_a_weight_read_under_save_on_cpu_is_whole_in_backward(twins: Twins) -> None:
    same_steps(*twins(Saving), 0, 1)


@pytest.mark.parametrize("row", [{"zero_stage": 3, "param_persistence_threshold": 1000}], ids=["resident"])
def test_a_numpy_edit_of_a_weight_that_stays_whole_at_stage_3_counts(engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    for net in (engine.model, plain.model):
        net.get_parameter("last.bias").detach().numpy()[:] = 7.0
    same_steps(engine, plain, 1, 2)


FIRST, LAST = {"first.*": {"lr": 1e-4, "weight_decay": 0.0}}, {"last.*": {"lr": 5e-2}}


def rates(engine: Engine) -> dict[str, float]:
    names = {id(p): name for name, p in engine.model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in engine.param_groups for p in group["params"]}


@pytest.mark.parametrize("by_torch", [False, True])
def test_groups_in_another_order_keep_their_own_hyperparameters(twins: Twins, by_torch: bool) -> None:
    (one, _), (other, _) = twins(Net, param_groups=FIRST | LAST), twins(Net, param_groups=LAST | FIRST)
    one.param_groups[1]["lr"] = 3e-4
    if by_torch:
        other.optimizer.load_state_dict(one.optimizer.state_dict())
    else:
        other.load_state_dict(one.state_dict())
    assert rates(other) == rates(one)
    assert rates(other)["first.weight"] == 3e-4


def test_groups_that_divide_the_parameters_otherwise_are_refused(twins: Twins) -> None:
    (one, _), (other, _) = twins(Net, param_groups=FIRST | LAST), twins(Net, param_groups={"*": {"lr": 1e-2}})
    before = other.state_dict()
    with pytest.raises(UsageError, match=r"other optimizer groups.*give the engine the param_groups"):
        other.load_state_dict(one.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


def test_hooks_on_the_optimizers_step_are_called_once_whoever_steps(engine: Engine) -> None:
    calls: list[str] = []
    engine.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    engine.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for take in (engine.step, engine.optimizer.step):
        engine.backward(by_forward(engine.model, batch(0)))
        take()
    assert calls == ["before", "after"] * 2


class Keeping(Net):
    """Keeps a view of a weight from its first forward."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        if self.kept is None:
            self.kept = self.last.weight.t()
        return h @ self.kept + self.last.bias


@pytest.mark.parametrize("keys", [{}, {"param_persistence_threshold": 10_000}], ids=["released", "resident"])
def test_a_view_of_before_the_step_is_current_or_refused(
    twins: Twins, row: dict[str, Any], keys: dict[str, Any]
) -> None:
    engine, plain = twins(Keeping, **keys)
    same_steps(engine, plain, 0)
    if row["zero_stage"] == 3:
        with pytest.raises(UsageError, match=r"a view of 'last\.weight' was kept .*make the view anew"):
            engine.model(batch(1))
        engine.model.kept = plain.model.kept = None  # type: ignore[assignment]
    same_steps(engine, plain, 1)


@pytest.mark.parametrize(
    "layer", [nn.LazyLinear(7), nn.LazyBatchNorm1d(affine=False)], ids=["weight", "buffer"]
)
def test_a_lazy_module_that_was_never_called_is_refused(row: dict[str, Any], layer: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"lazy module has no shape yet: call the model once"):
        build(nn.Sequential(nn.Linear(13, 24), layer), row)


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.check), 3])
def test_ranks_share_frozen_values_and_buffers_of_every_dtype(ranks: RankPool, stage: int) -> None:
    first, second = ranks.run(2, "tests.engine.safety.ranked:share_every_dtype", stage)
    assert first == second
    assert len(first) == 13
