"""What goes wrong in the middle of training, or is done beside it. All of it must leave no trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.engine import models
from zbench.engine import Engine
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.policies import MultiBackward, Unmanaged
from zbench.errors import UsageError


class AccidentError(Exception):
    """What user code raises."""


def disturb(kinds: str, engine: Engine, data: models.Batch, *, first: bool, last: bool | None) -> None:
    """Do what `kinds` (names, by comma) says, before a backward that is the step's `first` or not."""
    for kind in kinds.split(","):
        if kind in ("backward", "interrupt", "write", "discard", "discard sums") and not first:
            continue  # it would cost the step the backwards before it, or is refused after them
        DISTURBANCES[kind](engine, data, last)


def fail_in_backward(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """An activation's hook raises when about half of backward is done."""
    with _hooked(engine.model, data, lambda out: out.register_hook(_raise)):
        loss = models.loss(engine.model, data)
    _expect(AccidentError, engine.backward, loss, last)


def fail_at_the_end_of_backward(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Ctrl-C arrives when every gradient has."""
    loss = models.loss(engine.model, data)
    with mock.patch.object(Gradients, "finish", _interrupt):
        _expect(KeyboardInterrupt, engine.backward, loss, last)


def fail_in_forward(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """A module raises in the middle of the model's forward."""
    with _hooked(engine.model, data, _raise):
        _expect(AccidentError, models.loss, engine.model, data)


def evaluate(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Run the model without gradients, twice, and once with gradients that nobody asks for."""
    with torch.no_grad():
        a, b = (models.loss(engine.model, data) for _ in range(2))
    c = models.loss(engine.model, data)
    assert a == b == c


def read(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Look at everything that can be looked at between two backwards."""
    with torch.no_grad():
        assert all(bool(p.isfinite().all()) for m in engine.model.modules() for p in _own(m))
    assert engine.full_parameters().keys() == dict(engine.model.named_parameters()).keys()
    engine.state_dict(), engine.optimizer_parts(), engine.memory_by_category()


def write(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Give every rank the values of rank 0, which are what all had."""
    with engine.gathered(engine.model, write=True), torch.no_grad():
        for parameter in engine.model.parameters():
            if engine.collectives.rank:
                parameter.zero_()


def _own(module: nn.Module) -> Iterator[Tensor]:
    for name in module._parameters:
        if (value := getattr(module, name)) is not None:
            yield value


def discard(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Discard a step of which everything has been reduced, and may still be on its way."""
    engine.backward(models.loss(engine.model, data), None if last is None else True)
    engine.zero_grad()


def discard_sums(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Discard a step of several backwards, whose sums may still be on their way."""
    for _ in range(2):
        engine.backward(models.loss(engine.model, data), None if last is None else False)
    engine.zero_grad()


def misuse(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """Call out of turn: all of it is refused, and says what to do."""
    policy = engine.policies.accumulation
    if not isinstance(policy, Unmanaged) or policy.count == 0:
        _expect(UsageError, engine.step)
    if not isinstance(policy, MultiBackward):
        _expect(UsageError, engine.backward, models.loss(engine.model, data), True)


DISTURBANCES = {
    "backward": fail_in_backward,
    "interrupt": fail_at_the_end_of_backward,
    "forward": fail_in_forward,
    "evaluate": evaluate,
    "read": read,
    "write": write,
    "discard": discard,
    "discard sums": discard_sums,
    "misuse": misuse,
}


@contextmanager
def _hooked(model: nn.Module, data: models.Batch, act: Any) -> Iterator[None]:
    """Have `act` called with the output of the middle one of the modules that are called in this model."""
    called: list[nn.Module] = []
    inner = [m for m in model.modules() if m is not model]
    notes = [m.register_forward_hook(lambda module, *_: called.append(module)) for m in inner]
    with torch.no_grad():
        models.loss(model, data)
    for note in notes:
        note.remove()
    handle = called[len(called) // 2].register_forward_hook(lambda module, args, out: act(out) and None)
    try:
        yield
    finally:
        handle.remove()


class _Notice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Any) -> Tensor:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.call()
        return gradient, None


def when_backward_passes(call: Any) -> Any:
    """Return an identity whose backward calls `call` first."""
    return lambda x: _Notice.apply(x, call)


def _raise(*_: object) -> None:
    raise AccidentError


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _expect(error: type[BaseException], call: Any, *arguments: object) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call} did not raise {error.__name__}")
