"""A model that changes after the build (memory, forward, groups): it counts, or is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.utils import parametrizations, parametrize

from tests.engine.lattice import row_id
from tests.engine.safety.plainly import STAGES, Net, Plain, batch, build, by_forward, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError
from zbench.testing.ranks import RankPool

MODULE = "tests.engine.safety.ranked:"
Edit = Callable[[nn.Module], object]
each_stage = pytest.mark.parametrize("row", STAGES, ids=row_id)


class Symmetric(nn.Module):
    """A parametrization that can be assigned to."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, a: Tensor) -> Tensor:
        return a.triu()


class Squares(nn.Module):
    """Square layers, which a parametrization of any kind fits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.middle, self.last = nn.Linear(13, 24), nn.Linear(24, 24), nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return output


def parametrized() -> Squares:
    net = Squares()
    parametrize.register_parametrization(net.middle, "weight", Symmetric())
    return net


def assign(net: nn.Module) -> None:
    net.middle.weight = torch.eye(24) * 0.3  # type: ignore[union-attr]


def register(net: nn.Module) -> None:
    parametrize.register_parametrization(net.middle, "weight", Symmetric())  # type: ignore[arg-type]


def make_orthogonal(net: nn.Module) -> None:
    parametrizations.orthogonal(net.middle)  # type: ignore[arg-type]


def take_off(net: nn.Module) -> None:
    parametrize.remove_parametrizations(net.middle, "weight", leave_parametrized=True)  # type: ignore[arg-type]


@torch.no_grad()
def set_memory(net: nn.Module) -> None:
    net.middle.weight.set_(torch.full((24, 24), 0.01))  # type: ignore[operator, union-attr]


def set_transposed_data(net: nn.Module) -> None:
    net.middle.weight.data = net.middle.weight.data.t()  # type: ignore[operator, union-attr]


EDITS: list[tuple[Callable[[], nn.Module], Edit]] = [
    (parametrized, assign),
    (parametrized, take_off),
    (Squares, register),
    (Squares, make_orthogonal),
    (Squares, set_memory),
    (Squares, set_transposed_data),
]


@each_stage
@pytest.mark.parametrize(("make", "edit"), EDITS, ids=lambda f: f.__name__)
def test_values_in_other_memory_count(row: dict[str, Any], make: Callable[[], nn.Module], edit: Edit) -> None:
    engine = build(make(), row)
    plain = Plain(make())
    same_steps(engine, plain, 0, 1)
    with engine.gathered(engine.model):
        edit(engine.model)
    edit(plain.model)
    plain.masters = dict(zip(dict(plain.model.named_parameters()), _in_order(plain), strict=True))
    same_steps(engine, plain, 2, 3)
    engine.close()


def _in_order(plain: Plain) -> list[nn.Parameter]:
    """Return the masters in the order of today's names: a parametrization renames `middle.weight`."""
    weight = [
        master for name, master in plain.masters.items() if name.startswith("middle") and "bias" not in name
    ]
    by_name = {
        name.replace("parametrizations.weight.original", "weight"): m for name, m in plain.masters.items()
    }
    names = [
        n.replace("parametrizations.weight.original", "weight") for n, _ in plain.model.named_parameters()
    ]
    assert len(weight) == 1
    return [by_name[name] for name in names]


@each_stage
def test_a_weight_that_is_transposed_in_place_is_refused(row: dict[str, Any]) -> None:
    engine = build(Squares(), row)
    with torch.no_grad(), pytest.raises(UsageError, match=r"'middle.weight' as it was.*strides \[1, 24\]"):  # noqa: PT012
        with engine.gathered(engine.model):
            engine.model.middle.weight.t_()  # type: ignore[operator, union-attr]
        engine.full_parameters()
    engine.close()


def halved(self: nn.Linear, x: Tensor) -> Tensor:
    return nn.functional.linear(x, self.weight, self.bias) * 0.5


class Halved(nn.Linear):
    """Another class for a layer."""

    forward = halved


def exchange_class(net: nn.Module) -> None:
    net.last.__class__ = Halved


def exchange_forward_of_class(net: nn.Module) -> None:
    assert isinstance(net.last, Own)
    type(net.last).forward = halved  # type: ignore[method-assign, assignment]


class Own(nn.Linear):
    """A class whose forward a test exchanges."""


def own() -> Net:
    net = Net()
    net.last = Own(24, 7)
    with torch.no_grad():
        net.last.weight.fill_(0.1), net.last.bias.zero_()
    return net


def traced() -> nn.Module:
    torch.manual_seed(5)
    return fx.symbolic_trace(nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 7)))


def recompile(net: nn.Module) -> None:
    assert isinstance(net, fx.GraphModule)
    tanh = next(node for node in net.graph.nodes if node.target == "1")
    with net.graph.inserting_after(tanh):
        relu = net.graph.call_function(torch.relu, (tanh,))
    tanh.replace_all_uses_with(relu)
    relu.args = (tanh,)
    net.recompile()


@each_stage
@pytest.mark.parametrize(
    ("make", "edit"),
    [(own, exchange_forward_of_class), (Net, exchange_class), (traced, recompile)],
    ids=lambda f: f.__name__,
)
def test_a_forward_that_is_exchanged_after_the_build_runs(
    row: dict[str, Any], make: Callable[[], nn.Module], edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "forward", nn.Linear.forward)  # restored after the test
    engine = build(make(), row)
    plain = Plain(make())
    same_steps(engine, plain, 0)
    for net in (engine.model, plain.model):
        edit(net)
    same_steps(engine, plain, 1, 2)
    engine.close()


@each_stage
def test_a_model_that_takes_no_hooks_is_refused_and_stays_as_it_is(row: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Linear(13, 24), torch.jit.script(nn.Linear(24, 7)))
    with pytest.raises(UsageError, match=r"'1' is a TorchScript module.*build the engine on the module"):
        build(net, row)
    by_forward(net, batch(0)).backward()
    assert all(type(p) is nn.Parameter and p.grad is not None for p in net.parameters())


class Stubborn(nn.Linear):
    """Fails when a hook is registered on it."""

    def register_load_state_dict_pre_hook(self, hook: Any) -> Any:
        raise RuntimeError("no hooks here")


@each_stage
def test_a_build_that_fails_while_it_attaches_leaves_the_model_as_it_was(row: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Linear(13, 24), Stubborn(24, 7))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(RuntimeError, match="no hooks here"):
        build(net, row)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    by_forward(net, batch(0)).backward()
    assert all(type(p) is nn.Parameter and p.grad is not None for p in net.parameters())
    assert not any("forward" in vars(module) for module in net.modules())


class Saving(nn.Module):
    """Reads a weight as an attribute, while what autograd saves is kept by `save_on_cpu`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.last = nn.Linear(13, 24), nn.Linear(24, 7)
        self.weight = nn.Parameter(torch.randn(24, 24) / 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        with save_on_cpu():
            h = torch.tanh(h @ self.weight)
        output: Tensor = self.last(h)
        return output


@each_stage
def test_a_weight_read_under_save_on_cpu_is_whole_in_backward(row: dict[str, Any]) -> None:
    engine = build(Saving(), row)
    plain = Plain(Saving())
    same_steps(engine, plain, 0, 1)
    engine.close()


def test_a_numpy_edit_of_a_weight_that_stays_whole_at_stage_3_counts() -> None:
    row = {"zero_stage": 3, "param_persistence_threshold": 1000}
    engine = build(Net(), row)
    plain = Plain(Net())
    same_steps(engine, plain, 0)
    for net in (engine.model, plain.model):
        net.last.bias.detach().numpy()[:] = 7.0  # type: ignore[union-attr, operator]
    same_steps(engine, plain, 1, 2)
    engine.close()


FIRST, LAST = {"first.*": {"lr": 1e-4, "weight_decay": 0.0}}, {"last.*": {"lr": 5e-2}}


def rates(engine: Engine) -> dict[str, float]:
    names = {id(p): name for name, p in engine.model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in engine.param_groups for p in group["params"]}


@each_stage
@pytest.mark.parametrize("by_torch", [False, True])
def test_groups_in_another_order_keep_their_own_hyperparameters(row: dict[str, Any], by_torch: bool) -> None:
    one, other = build(Net(), row, param_groups=FIRST | LAST), build(Net(), row, param_groups=LAST | FIRST)
    one.param_groups[1]["lr"] = 3e-4
    if by_torch:
        other.optimizer.load_state_dict(one.optimizer.state_dict())
    else:
        other.load_state_dict(one.state_dict())
    assert rates(other) == rates(one)
    assert rates(other)["first.weight"] == 3e-4
    one.close(), other.close()


@each_stage
@pytest.mark.parametrize("groups", [FIRST | {"last.bias": {"lr": 1e-2}} | LAST, {"*": {"lr": 1e-2}}])
def test_groups_that_divide_the_parameters_otherwise_are_refused(
    row: dict[str, Any], groups: dict[str, Any]
) -> None:
    one, other = build(Net(), row, param_groups=FIRST | LAST), build(Net(), row, param_groups=groups)
    before = other.state_dict()
    with pytest.raises(UsageError, match=r"other optimizer groups.*give the engine the param_groups"):
        other.load_state_dict(one.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    one.close(), other.close()


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


@each_stage
@pytest.mark.parametrize("keys", [{}, {"param_persistence_threshold": 10_000}], ids=["released", "resident"])
def test_a_view_of_before_the_step_is_current_or_refused(row: dict[str, Any], keys: dict[str, Any]) -> None:
    plain = Plain(Keeping())
    engine = build(Keeping(), row, **keys)
    same_steps(engine, plain, 0)
    if row["zero_stage"] < 3:
        same_steps(engine, plain, 1)
    else:
        with pytest.raises(UsageError, match=r"a view of 'last\.weight' was kept .*make the view anew"):
            engine.model(batch(1))
        engine.model.kept = plain.model.kept = None  # type: ignore[assignment]
        same_steps(engine, plain, 1)
    engine.close()


@each_stage
@pytest.mark.parametrize(
    "layer", [nn.LazyLinear(7), nn.LazyBatchNorm1d(affine=False)], ids=["weight", "buffer"]
)
def test_a_lazy_module_that_was_never_called_is_refused(row: dict[str, Any], layer: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"lazy module has no shape yet: call the model once"):
        build(nn.Sequential(nn.Linear(13, 24), layer), row)


@pytest.mark.parametrize("stage", [0, 3])
def test_ranks_share_frozen_values_and_buffers_of_every_dtype(ranks: RankPool, stage: int) -> None:
    first, second = ranks.run(2, MODULE + "share_every_dtype", stage)
    assert first == second
    assert len(first) == 16
