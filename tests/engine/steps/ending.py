"""Engines that are closed, dropped, interrupted or broken off; each case runs on every rank."""

import gc
import os
import signal
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.engine.steps.agreeing import heard
from tests.engine.steps.training import as_undisturbed, batch, engine_of, model


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
    return said, as_undisturbed(trained_on, group, spec, 1)


def dropped(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[bool, bool]:
    """An engine is dropped without close; whether its core goes, and a new engine trains the model."""
    net = model()
    engine = engine_of(group, net, spec)
    core = weakref.ref(engine.checked_state().optimizer)
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
    return gone, as_undisturbed(trained_on, group, spec, 1)


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
            parameters = engine.checked_state().parameters
            gather = parameters.settle
            parameters.settle = lambda: (kill(), gather())  # type: ignore[func-returns-value, method-assign]
            engine.step()
        said = "nothing"
    except KeyboardInterrupt:
        said = "KeyboardInterrupt"
    if where == "backward":
        engine.backward(net(batch(1)).square().mean())
        engine.step()
    values = engine.full_parameters()
    engine.close()
    return said, as_undisturbed(values, group, spec, 2)


def broken_off(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[str]:
    """An error comes while weights are being updated; nothing can be done with the engine then."""
    net = model()
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())

    def fail() -> None:
        raise MemoryError("in the middle")

    engine.checked_state().parameters.settle = fail  # type: ignore[method-assign]
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
