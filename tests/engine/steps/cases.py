"""What ranks do in the tests of steps; every case compares with plain PyTorch in its own process."""

import gc
import os
import signal
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.steps.agreeing import heard
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

Values = dict[str, Tensor]
SMALL = {"reduce_bucket_size": 300, "allgather_bucket_size": 300, "param_persistence_threshold": 0}


def model() -> nn.Module:
    """Return a small model, the same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))


def batch(step: int) -> Tensor:
    """Return the inputs of a step, the same on every rank: so gradients are those of one process."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def engine_of(group: dist.ProcessGroup, net: nn.Module, spec: dict[str, Any]) -> Engine:
    """Return an engine with small buckets."""
    return build_engine(net, EngineSpec.model_validate(SMALL | spec), group)


def same(engine: Engine, before: Values) -> bool:
    """Whether the engine's whole parameters are `before`."""
    now = engine.full_parameters()
    return all(torch.equal(now[name], value) for name, value in before.items())


def trained(group: dist.ProcessGroup, spec: dict[str, Any], steps: int, lr: float = 1e-3) -> Values:
    """Return the parameters after steps that nothing disturbs."""
    net = model()
    engine = engine_of(group, net, spec)
    for step in range(steps):
        for of in engine.param_groups:
            of["lr"] = lr
        engine.backward(net(batch(step)).square().mean())
        engine.step()
    values = engine.full_parameters()
    engine.close()
    return values


def invalid_group(group: dist.ProcessGroup, spec: dict[str, Any], on: int) -> tuple[str, bool, bool]:
    """The second group's lr is invalid on rank `on` (-1: on all); return what is heard, whether all stayed as
    it was, and whether the step that is then repaired is the one of an undisturbed run.
    """
    groups = {"param_groups": {"4.*": {"weight_decay": 0.1}}}
    net = model()
    engine = engine_of(group, net, spec | groups)
    engine.backward(net(batch(0)).square().mean())
    before = engine.full_parameters()
    if on in (-1, dist.get_rank(group)):
        engine.param_groups[1]["lr"] = -1.0
    said = heard(engine.step)
    unchanged = same(engine, before)
    engine.param_groups[1]["lr"] = 1e-3
    engine.step()
    values = engine.full_parameters()
    engine.close()
    expected = trained(group, spec | groups, 1)
    return said, unchanged, all(torch.equal(values[n], v) for n, v in expected.items())


def other_lr(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[str, bool]:
    """Every rank has a learning rate of its own."""
    net = model()
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())
    before = engine.full_parameters()
    engine.param_groups[0]["lr"] = 0.1 * (1 + dist.get_rank(group))
    said = heard(engine.step)
    unchanged = same(engine, before)
    engine.close()
    return said, unchanged


def discarded(group: dist.ProcessGroup, spec: dict[str, Any], through: str) -> bool:
    """A step that has begun is discarded; whether the next one is that of an undisturbed run."""
    net = model()
    engine = engine_of(group, net, spec)
    zero = engine.zero_grad if through == "engine" else engine.optimizer.zero_grad
    zero()
    engine.backward(100 * net(batch(7)).square().mean())
    zero()
    engine.backward(net(batch(0)).square().mean())
    engine.step()
    zero()
    engine.backward(net(batch(1)).square().mean())
    engine.step()
    values = engine.full_parameters()
    engine.close()
    return all(torch.equal(values[n], v) for n, v in trained(group, spec, 2).items())


def retained(group: dist.ProcessGroup, spec: dict[str, Any]) -> bool:
    """Two backwards of one graph; whether they leave the bits of two backwards of two graphs."""
    results = []
    for retain in (True, False):
        net = model()
        engine = engine_of(group, net, spec | {"accumulation_mode": "unmanaged"})
        loss = net(batch(0)).square().mean()
        engine.backward(loss, retain_graph=retain)
        engine.backward(loss if retain else net(batch(0)).square().mean())
        engine.step()
        results.append(engine.full_parameters())
        engine.close()
    return all(torch.equal(results[0][n], v) for n, v in results[1].items())


def norms(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[float | None]:
    """Return the norm of a step that did not ask, one that did, and of torch's own."""
    net, plain = model(), model()
    engine = engine_of(group, net, spec)
    found = []
    for step in range(2):
        engine.backward(net(batch(0)).square().mean())
        found.append(engine.step(grad_norm=step == 0).grad_norm)
    engine.close()
    plain(batch(0)).square().mean().backward()
    return [
        *found,
        float(nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])),
    ]


def left_over(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[str, str, bool]:
    """A gradient is there before build_engine, and before a backward; whether steps are then undisturbed."""
    net = model()
    net(batch(3)).sum().backward()
    first = heard(lambda: engine_of(group, net, spec))
    net.zero_grad()
    engine = engine_of(group, net, spec)
    parameter = net[0].bias
    parameter.grad = torch.ones_like(parameter)
    second = heard(lambda: engine.backward(net(batch(0)).square().mean()))
    net.zero_grad()
    engine.backward(net(batch(0)).square().mean())
    engine.step()
    values = engine.full_parameters()
    engine.close()
    return first, second, all(torch.equal(values[n], v) for n, v in trained(group, spec, 1).items())


def groups_added(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[str]:
    """Parameter groups are added in the three ways torch has."""
    net = model()
    engine = engine_of(group, net, spec)
    added = {"params": [nn.Parameter(torch.zeros(3))], "lr": 1.0}
    said = [heard(lambda: engine.optimizer.add_param_group(added))]
    engine.backward(net(batch(0)).square().mean())
    before = engine.full_parameters()
    engine.param_groups.append({**engine.param_groups[0], **added})
    said.append(heard(engine.step))
    assert same(engine, before)
    engine.param_groups.pop()
    engine.step()
    engine.close()
    return said


def closing(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[list[str], bool]:
    """An engine is closed twice, around its successor's life; return what is refused, and whether the
    successor trains on."""
    net = model()
    first = engine_of(group, net, spec)
    values = first.full_parameters()
    said = [heard(lambda: engine_of(group, net, spec))]
    first.close()
    for name, parameter in net.named_parameters():
        parameter.data = values[name].clone()
    second = engine_of(group, net, spec)
    first.close()
    loss = net(batch(0)).square().mean()
    said += [heard(lambda: first.backward(loss)), heard(first.step), heard(first.zero_grad)]
    second.backward(loss)
    second.step()
    trained_on = second.full_parameters()
    second.close()
    return said, all(torch.equal(trained_on[n], v) for n, v in trained(group, spec, 1).items())


def dropped(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[bool, bool]:
    """An engine is dropped without close; whether its core goes, and a new engine trains the model."""
    net = model()
    engine = engine_of(group, net, spec)
    core = weakref.ref(engine._core.optimizer)
    values = engine.full_parameters()
    del engine
    gc.collect()
    gone = core() is None
    for name, parameter in net.named_parameters():
        parameter.data = values[name].clone()
    second = engine_of(group, net, spec)
    second.backward(net(batch(0)).square().mean())
    second.step()
    trained_on = second.full_parameters()
    second.close()
    return gone, all(torch.equal(trained_on[n], v) for n, v in trained(group, spec, 1).items())


def interrupted(group: dist.ProcessGroup, spec: dict[str, Any], where: str) -> tuple[str, bool]:
    """SIGINT comes in the middle of a backward, or of a step's update; whether the state is the one before
    (after a backward) or after (after a step), as an undisturbed run has it."""
    net = model()
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())
    engine.step()
    kill = _once(lambda: os.kill(os.getpid(), signal.SIGINT))
    out = net(batch(1))
    try:
        if where == "backward":
            out.register_hook(lambda grad: kill())
            engine.backward(out.square().mean())
        else:
            engine.backward(out.square().mean())
            gather = engine._core.parameters.settle
            engine._core.parameters.settle = lambda: (kill(), gather())  # type: ignore[method-assign]
            engine.step()
        said = "nothing"
    except KeyboardInterrupt:
        said = "KeyboardInterrupt"
    if where == "backward":
        engine.backward(net(batch(1)).square().mean())
        engine.step()
    values = engine.full_parameters()
    engine.close()
    return said, all(torch.equal(values[n], v) for n, v in trained(group, spec, 2).items())


def broken_off(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[str]:
    """An error comes while weights are being updated; nothing can be done with the engine then."""
    net = model()
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())

    def fail() -> None:
        raise MemoryError("in the middle")

    engine._core.parameters.settle = fail  # type: ignore[method-assign]
    said = [heard(engine.step), heard(engine.step), heard(lambda: engine.backward(torch.ones(())))]
    engine.close()
    return said


def _once(act: Callable[[], object]) -> Callable[[], None]:
    done: list[bool] = []

    def call() -> None:
        if not done:
            done.append(True)
            act()

    return call


def hooked(group: dist.ProcessGroup, spec: dict[str, Any], backwards: int) -> tuple[str, bool]:
    """The user's hooks on parameters see and change gradients; whether as in plain PyTorch."""
    seen: list[list[Tensor]] = []
    results: list[list[Tensor]] = []
    said = ""
    for plain in (True, False):
        net, mine = model(), []
        trainer = None if plain else engine_of(group, net, spec)
        net[0].weight.register_hook(lambda grad: grad * 2)
        net[2].weight.register_post_accumulate_grad_hook(lambda p, mine=mine: mine.append(p.grad.clone()))

        def steps(net: nn.Module = net, trainer: Engine | None = trainer) -> None:
            for _ in range(backwards):
                loss = net(batch(0)).square().mean()
                loss.backward() if trainer is None else trainer.backward(loss)
            if trainer is not None:
                trainer.step()

        if trainer is None:
            steps()
            fused = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
            fused.step()
            results.append([p.detach() for p in net.parameters()])
        else:
            said = heard(steps)
            results.append(list(trainer.full_parameters().values()))
            trainer.close()
        seen.append(mine)
    if said != "nothing":
        return said, False
    alike = all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    near = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))
    return said, alike and near


def sparse(group: dist.ProcessGroup, spec: dict[str, Any]) -> str:
    """An embedding gives sparse gradients."""
    net = nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Linear(8, 4))
    engine = engine_of(group, net, spec)
    said = heard(lambda: engine.backward(net(torch.arange(4)).sum()))
    engine.close()
    return said
