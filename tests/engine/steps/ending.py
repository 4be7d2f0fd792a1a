"""Engines that are closed, dropped, interrupted or broken off; each case runs on every rank."""

import gc
import os
import signal
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.engine.steps.agreeing import heard
from tests.engine.steps.training import as_undisturbed, batch, engine_of, model, take_step


def give_back(net: nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Give a model the values that an engine took with it."""
    for name, parameter in net.named_parameters():
        parameter.data = values[name].clone()


def closing(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[list[str], bool]:
    """An engine is closed twice, around its successor's life; return what is refused, and whether the
    successor trains on."""
    net = model()
    first = engine_of(group, net, spec)
    values = first.full_parameters()
    messages = [heard(lambda: engine_of(group, net, spec))]
    first.close()
    give_back(net, values)
    second = engine_of(group, net, spec)
    first.close()
    loss = net(batch(0)).square().mean()
    messages += [heard(lambda: first.backward(loss)), heard(first.step), heard(first.zero_grad)]
    second.backward(loss)
    second.step()
    return messages, as_undisturbed(second, group, spec, 1)


def dropped(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[bool, bool]:
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


def interrupted(group: dist.ProcessGroup, spec: dict[str, Any], where: str) -> tuple[str, bool]:
    """SIGINT comes in the middle of a backward, or of a step's update; whether the state is the one before
    (after a backward) or after (after a step), as an undisturbed run has it."""
    net = model()
    engine = engine_of(group, net, spec)
    take_step(engine, 0)
    out = net(batch(1))
    parameters = engine.checked_state().parameters
    gather = parameters.settle

    def kill_and_gather() -> None:
        parameters.settle = gather  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGINT)
        gather()

    try:
        if where == "backward":
            out.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGINT))
        engine.backward(out.square().mean())
        parameters.settle = kill_and_gather  # type: ignore[method-assign]
        engine.step()
        outcome = "nothing"
    except KeyboardInterrupt:
        outcome = "KeyboardInterrupt"
    if where == "backward":
        take_step(engine, 1)
    return outcome, as_undisturbed(engine, group, spec, 2)


def broken_off(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[str]:
    """An error comes while weights are being updated; nothing can be done with the engine then."""
    net = model()
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())

    def fail() -> None:
        raise MemoryError("in the middle")

    engine.checked_state().parameters.settle = fail  # type: ignore[method-assign]
    messages = [heard(engine.step), heard(engine.step), heard(lambda: engine.backward(torch.ones(())))]
    engine.close()
    return messages
