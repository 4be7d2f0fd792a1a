"""Steps that are refused before anything has changed; each case returns what its rank heard."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.engine.steps.agreeing import heard
from tests.engine.steps.training import as_undisturbed, batch, engine_of, model, same, take_step


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
    message = heard(engine.step)
    unchanged = same(engine, before)
    engine.param_groups[1]["lr"] = 1e-3
    engine.step()
    return message, unchanged, as_undisturbed(engine, group, spec | groups, 1)


def other_lr(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[str, bool]:
    """Every rank has a learning rate of its own."""
    net = model()
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())
    before = engine.full_parameters()
    engine.param_groups[0]["lr"] = 0.1 * (1 + dist.get_rank(group))
    message = heard(engine.step)
    unchanged = same(engine, before)
    engine.close()
    return message, unchanged


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
    take_step(engine, 0)
    return first, second, as_undisturbed(engine, group, spec, 1)


def groups_edited(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[str]:
    """Lists of parameters and groups are changed."""
    net = model()
    engine = engine_of(group, net, spec)
    groups = engine.param_groups
    more = {**groups[0], "params": [nn.Parameter(torch.zeros(3))]}
    engine.backward(net(batch(0)).square().mean())
    before = engine.full_parameters()
    messages = list[str]()
    for change, undo in (
        (lambda: groups.append(more), groups.pop),
        (lambda: groups[0]["params"].append(more["params"][0]), groups[0]["params"].pop),
        (lambda: groups[0].update(amsgrad=True), lambda: groups[0].update(amsgrad=False)),
    ):
        change()
        messages.append(heard(engine.step))
        undo()
        assert same(engine, before)
    engine.step()
    engine.close()
    return messages


def sparse(group: dist.ProcessGroup, spec: dict[str, Any]) -> str:
    """An embedding gives sparse gradients."""
    net = nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Linear(8, 4))
    engine = engine_of(group, net, spec)
    message = heard(lambda: engine.backward(net(torch.arange(4)).sum()))
    engine.close()
    return message
