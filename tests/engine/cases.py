"""Training in a rank: an engine's run, what a user changes between steps, and what goes wrong beside it.

Changes are the same on every rank, and in the plain run that is compared. What goes wrong leaves no trace.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine import models
from tests.engine.plain import Trajectory
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.policies import MultiBackward, Unmanaged
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

Groups = list[dict[str, Any]]
Change = Callable[[int, nn.Module, Groups], None]


def engine_trajectory(
    group: dist.ProcessGroup, name: str, spec: dict[str, Any], *, instruments: Any = None, **how: Any
) -> Trajectory:
    """Return this rank's trajectory of a run; for `how` see `train`."""
    parsed = EngineSpec.model_validate(spec)
    engine = build_engine(models.make(name), parsed, group, instruments=instruments)
    return train(engine, name, dist.get_rank(group), **how)


def trajectory_with_gpu_sizes(*arguments: Any, **how: Any) -> Trajectory:
    """Return the same with the sizes that a GPU has by default: whole blocks are gathered."""
    return engine_trajectory(*arguments, instruments=Instruments(device_type="cuda"), **how)


def train(
    engine: Engine,
    name: str,
    rank: int,
    *,
    steps: int,
    backwards: int,
    change: str = "nothing",
    disturb: str = "",
    late: bool = False,
    resumed: Callable[[int, Engine], Engine] = lambda step, engine: engine,
) -> Trajectory:
    """Train the model `name`, close its engine, and return its trajectory.

    `change` happens before each step (`late`: behind its backwards), to the model and the optimizer's groups;
    `disturb` names what goes wrong, or is done beside training, and must leave no trace. `resumed` returns
    the engine that takes a step.
    """
    marks = isinstance(engine.policies.accumulation, MultiBackward)
    infos = []
    for step in range(steps):
        engine = resumed(step, engine)
        if not late:
            CHANGES[change](step, engine.model, engine.param_groups)
        for micro in range(backwards):
            data = models.batch(name, step, micro, rank)
            last = (micro == backwards - 1) if marks else None
            if disturb and step:
                disturb_by(disturb, engine, data, first=micro == 0, last=last)
            engine.backward(models.loss(engine.model, data), last=last)
        if "evaluate" in disturb:
            evaluate(engine, models.batch(name, step, 0, rank), None)
        if late:
            CHANGES[change](step, engine.model, engine.param_groups)
        infos.append(engine.step())
    norms, skipped = [i.grad_norm for i in infos], [i.skipped for i in infos]
    state = (engine.full_parameters(), engine.first_moments())
    result = Trajectory(*({n: value.cpu() for n, value in of.items()} for of in state), norms, skipped)
    assert all(p.grad is None for p in engine.model.parameters() if p.numel())
    engine.close()
    return result


def nothing(step: int, model: nn.Module, groups: Groups) -> None:
    """Leave everything as it is."""


def schedule(step: int, model: nn.Module, groups: Groups) -> None:
    """Give every group another learning rate, other betas, eps and weight decay at every step."""
    for k, group in enumerate(groups):
        group["lr"] = 1e-3 * (1 + step) / (1 + k)
        group["betas"] = (0.9 - 0.1 * step, 0.999 - 0.02 * step - 0.01 * k)
        group["eps"] = 1e-8 * 10**step
        group["weight_decay"] = 0.1 * step + 0.01 * k


def thaw(step: int, model: nn.Module, groups: Groups) -> None:
    """Freeze a layer for one step."""
    for p in model.get_submodule("last").parameters():
        p.requires_grad_(step != 1)


CHANGES: Mapping[str, Change] = {f.__name__: f for f in (nothing, schedule, thaw)}


class AccidentError(Exception):
    """What user code raises."""


def disturb_by(kinds: str, engine: Engine, data: models.Batch, *, first: bool, last: bool | None) -> None:
    """Do what `kinds` (names, by comma) says, before a backward that is the step's `first` or not."""
    for kind in kinds.split(","):
        if kind in ("backward", "interrupt", "write", "discard", "discard sums") and not first:
            continue  # it would cost the step the backwards before it, or is refused after them
        DISTURBANCES[kind](engine, data, last)


def fail_in_backward(engine: Engine, data: models.Batch, last: bool | None) -> None:
    """An activation's hook raises when about half of backward is done, and that half is discarded."""
    with _hooked(engine.model, data, lambda out: out.register_hook(_raise)):
        loss = models.loss(engine.model, data)
    _expect(AccidentError, engine.backward, loss, last)
    engine.zero_grad()


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
