"""Steps that are taken, refused, interrupted or broken off; each case runs on every rank."""

import gc
import os
import signal
import weakref
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.steps.agreeing import heard
from zbench.engine import Engine, build_engine
from zbench.engine.gradients.storage import RankSums
from zbench.spec.engine import EngineSpec

Values = dict[str, Tensor]
Spec = dict[str, Any]
SMALL = {"reduce_bucket_size": 300, "allgather_bucket_size": 300, "param_persistence_threshold": 0}


def model() -> nn.Sequential:
    """Return a small model, the same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))


def batch(step: int) -> Tensor:
    """Return the inputs of a step, the same on every rank: so gradients are those of one process."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def engine_of(group: dist.ProcessGroup, net: nn.Module, spec: Spec) -> Engine:
    """Return an engine with small buckets."""
    return build_engine(net, EngineSpec.model_validate(SMALL | spec), group)


def loss_of(net: nn.Module, step: int) -> Tensor:
    loss: Tensor = net(batch(step)).square().mean()
    return loss


def take_step(engine: Engine, step: int) -> None:
    """Take a step of one backward."""
    engine.backward(loss_of(engine.model, step))
    engine.step()


def same(engine: Engine, before: Values) -> bool:
    """Whether the engine's whole parameters are `before`."""
    now = engine.full_parameters()
    return all(torch.equal(now[name], value) for name, value in before.items())


def as_undisturbed(engine: Engine, group: dist.ProcessGroup, spec: Spec, steps: int) -> bool:
    """Close an engine; whether its parameters have the bits of a run of so many steps, undisturbed."""
    values = engine.full_parameters()
    engine.close()
    other = engine_of(group, model(), spec)
    for step in range(steps):
        take_step(other, step)
    alike = same(other, values)
    other.close()
    return alike


def invalid_group(group: dist.ProcessGroup, spec: Spec, on: int) -> tuple[str, bool, bool]:
    """The second group's lr is invalid on rank `on` (-1: on all); return what is heard, whether all stayed as
    it was, and whether the step that is then repaired is the one of an undisturbed run.
    """
    spec = spec | {"param_groups": {"4.*": {"weight_decay": 0.1}}}
    engine = engine_of(group, model(), spec)
    engine.backward(loss_of(engine.model, 0))
    before = engine.full_parameters()
    if on in (-1, dist.get_rank(group)):
        engine.param_groups[1]["lr"] = -1.0
    message = heard(engine.step)
    unchanged = same(engine, before)
    engine.param_groups[1]["lr"] = 1e-3
    engine.step()
    return message, unchanged, as_undisturbed(engine, group, spec, 1)


def other_lr(group: dist.ProcessGroup, spec: Spec) -> tuple[str, bool]:
    """Every rank has a learning rate of its own."""
    engine = engine_of(group, model(), spec)
    engine.backward(loss_of(engine.model, 0))
    before = engine.full_parameters()
    engine.param_groups[0]["lr"] = 0.1 * (1 + dist.get_rank(group))
    message = heard(engine.step)
    unchanged = same(engine, before)
    engine.close()
    return message, unchanged


def left_over(group: dist.ProcessGroup, spec: Spec) -> tuple[str, str, bool]:
    """A gradient is there before build_engine, and before a backward; whether steps are then undisturbed."""
    net = model()
    net(batch(3)).sum().backward()
    first = heard(lambda: engine_of(group, net, spec))
    net.zero_grad()
    engine = engine_of(group, net, spec)
    bias = net.get_parameter("0.bias")
    bias.grad = torch.ones_like(bias)
    second = heard(lambda: engine.backward(loss_of(net, 0)))
    net.zero_grad()
    take_step(engine, 0)
    return first, second, as_undisturbed(engine, group, spec, 1)


def sparse(group: dist.ProcessGroup, spec: Spec) -> str:
    """An embedding gives sparse gradients."""
    net = nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Linear(8, 4))
    engine = engine_of(group, net, spec)
    message = heard(lambda: engine.backward(net(torch.arange(4)).sum()))
    engine.close()
    return message


def discarded(group: dist.ProcessGroup, spec: Spec, through: str) -> bool:
    """A step that has begun is discarded, and nothing gathered for it; whether the next one is that of an
    undisturbed run.
    """
    engine = engine_of(group, model(), spec)
    zero = engine.zero_grad if through == "engine" else engine.optimizer.zero_grad
    with mock.patch.object(RankSums, "_gather", side_effect=AssertionError):
        engine.load_state_dict(engine.state_dict())
        engine.backward(100 * loss_of(engine.model, 7))
        zero()
    take_step(engine, 0)
    engine.backward(loss_of(engine.model, 7))
    rate, engine.param_groups[0]["lr"] = engine.param_groups[0]["lr"], -1.0
    assert "set a valid value" in heard(engine.step)
    if spec["zero_stage"] < 2:  # the others reduce in every backward: one more is added
        assert "engine.zero_grad() to discard" in heard(lambda: engine.backward(loss_of(engine.model, 7)))
    engine.param_groups[0]["lr"] = rate
    zero()
    take_step(engine, 1)
    return as_undisturbed(engine, group, spec, 2)


def norms(group: dist.ProcessGroup, spec: Spec) -> list[float | None]:
    """Return the norm of a step that asked, one that did not, and of torch's own."""
    engine, plain = engine_of(group, model(), spec), model()
    grad_norms = []
    for asks in (True, False):
        engine.backward(loss_of(engine.model, 0))
        grad_norms.append(engine.step(grad_norm=asks).grad_norm)
    engine.close()
    loss_of(plain, 0).backward()
    return [*grad_norms, float(nn.utils.clip_grad_norm_(plain.parameters(), 1.0))]


def hooked(group: dist.ProcessGroup, spec: Spec, backwards: int) -> tuple[str, bool]:
    """The user's hooks on parameters see and change gradients; whether as in plain PyTorch."""
    net, plain = model(), model()
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    for each, gradients in zip((net, plain), seen, strict=True):
        each.get_parameter("0.weight").register_hook(lambda grad: grad * 2)
        each.get_parameter("2.weight").register_post_accumulate_grad_hook(
            lambda p, gradients=gradients: gradients.append(p.grad.clone())
        )
    engine = engine_of(group, net, spec)

    def step() -> None:
        for _ in range(backwards):
            engine.backward(loss_of(net, 0))
        engine.step()

    message = heard(step)
    loss_of(plain, 0).backward()
    torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01, fused=True).step()
    values = engine.full_parameters()
    engine.close()
    alike = len(seen[0]) == 1 and torch.equal(seen[0][0], seen[1][0])
    near = all(torch.allclose(values[n], p, atol=1e-6) for n, p in plain.named_parameters())
    return message, alike and near


def give_back(net: nn.Module, values: Values) -> None:
    """Give a model the values that an engine took with it."""
    for name, parameter in net.named_parameters():
        parameter.data = values[name].clone()


def closing(group: dist.ProcessGroup, spec: Spec) -> tuple[list[str], bool]:
    """An engine is closed twice, around its successor's life; return what is refused, and whether the
    successor trains on.
    """
    net = model()
    first = engine_of(group, net, spec)
    values = first.full_parameters()
    messages = [heard(lambda: engine_of(group, net, spec))]
    first.close()
    give_back(net, values)
    second = engine_of(group, net, spec)
    first.close()
    loss = loss_of(net, 0)
    messages += [heard(lambda: first.backward(loss)), heard(first.step), heard(first.zero_grad)]
    second.backward(loss)
    second.step()
    return messages, as_undisturbed(second, group, spec, 1)


def dropped(group: dist.ProcessGroup, spec: Spec) -> tuple[bool, bool]:
    """An engine is dropped without close; whether its core goes, and a new engine trains the model."""
    net = model()
    engine = engine_of(group, net, spec)
    core = weakref.ref(engine.checked_state().optimizer)
    values = engine.full_parameters()
    del engine
    gc.collect()
    gone = core() is None
    give_back(net, values)
    second = engine_of(group, net, spec)
    take_step(second, 0)
    return gone, as_undisturbed(second, group, spec, 1)


def interrupted(group: dist.ProcessGroup, spec: Spec, where: str) -> tuple[str, bool]:
    """SIGINT comes in the middle of a backward, or of a step's update; whether the state is the one before
    (after a backward) or after (after a step), as an undisturbed run has it.
    """
    engine = engine_of(group, model(), spec)
    take_step(engine, 0)
    loss = loss_of(engine.model, 1)
    parameters = engine.checked_state().parameters
    gather = parameters.settle

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt_and_gather() -> None:
        parameters.settle = gather  # type: ignore[method-assign]
        interrupt()
        gather()

    outcome = "nothing"
    try:
        if where == "backward":
            loss.register_hook(interrupt)
        engine.backward(loss)
        parameters.settle = interrupt_and_gather  # type: ignore[method-assign]
        engine.step()
    except KeyboardInterrupt:
        outcome = "KeyboardInterrupt"
    if where == "backward":
        take_step(engine, 1)
    return outcome, as_undisturbed(engine, group, spec, 2)


def broken_off(group: dist.ProcessGroup, spec: Spec) -> list[str]:
    """An error comes while weights are being updated; nothing can be done with the engine then."""
    engine = engine_of(group, model(), spec)
    engine.backward(loss_of(engine.model, 0))
    parameters = engine.checked_state().parameters
    with mock.patch.object(parameters, "settle", side_effect=MemoryError("in the middle")):
        messages = [heard(engine.step), heard(engine.step), heard(lambda: engine.backward(torch.ones(())))]
    engine.close()
    return messages
