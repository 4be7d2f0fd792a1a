"""Engines that fail, that stray or that round otherwise: `engine: tests.worker.engines:OtherOrder`."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import build_engine
from zbench.engine.adam import AdamBackend, AdamTask
from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

FIRST_WRONG_STEP = 2
LATE_SECONDS = 0.05
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Engine:
    """The built-in engine. factor: of all losses. hidden: methods that it lacks. reports_norm: always."""

    factor = 1.0
    hidden = frozenset[str]()
    reports_norm = False

    def __init__(
        self, model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
    ) -> None:
        self.model, self.spec = model, spec
        spec = spec.model_copy(update={"engine": "builtin"})
        self.inner = build_engine(model, self.changed(spec), None, instruments=instruments)
        self.count = 0

    def changed(self, spec: EngineSpec) -> EngineSpec:
        return spec

    def __getattr__(self, name: str) -> Any:
        if name in self.hidden or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        self.inner.backward(loss * self.factor, last)

    def step(self) -> StepInfo:
        self.count += 1
        info = self.inner.step(grad_norm=self.reports_norm)
        self.after_step()
        return info

    def after_step(self) -> None:
        """Break something."""


class RaisesOnRank1(Engine):
    """Rank 0 only sees its peer go."""

    def after_step(self) -> None:
        if self.count == FIRST_WRONG_STEP and dist.get_rank() == 1:
            raise ArithmeticError("the second step\nwent wrong")


class StraysOnOneRank(Engine):
    """Rank 1 reports other parameters than the rest."""

    hidden = frozenset({"optimizer_parts"})

    def full_parameters(self) -> dict[str, Tensor]:
        strays = self.count >= FIRST_WRONG_STEP and dist.get_rank() == 1
        factor = 1.001 if strays else 1.0
        return {name: value * factor for name, value in self.inner.full_parameters().items()}


class _UpdatesTwice:
    """Applies the first task of rank 0 twice, from the second step on."""

    def __init__(self, inner: AdamBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update(self, tasks: Sequence[AdamTask], **options: Any) -> None:
        self._inner.update(tasks, **options)
        if tasks and tasks[0].step >= FIRST_WRONG_STEP and dist.get_rank() == 0:
            self._inner.update(tasks[:1], **options)


def knows_its_limit(
    model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    """Build the built-in engine where the rank may allocate 64 MiB."""
    if instruments.memory_limit != 64 << 20:
        raise UsageError(f"may allocate {instruments.memory_limit} bytes")
    return build_engine(model, spec.model_copy(update={"engine": "builtin"}), None, instruments=instruments)


def updates_shard_twice(
    model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    broken = Instruments(
        instruments.wrap_collectives, lambda inner: _UpdatesTwice(instruments.wrap_adam(inner))
    )
    return build_engine(model, spec, None, instruments=broken)


def listening(process: psutil.Process) -> list[str]:
    """Return the addresses at which a process accepts connections over the network."""
    connections = process.net_connections(kind="inet")
    return sorted(c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN)


def tells_its_surroundings(model: nn.Module, spec: EngineSpec, *rest: Any, **more: Any) -> TrainingEngine:
    """Print as JSON what other users could reach: addresses of the rank and its server, temporary files."""
    engine = build_engine(model, spec.model_copy(update={"engine": "builtin"}), *rest, **more)
    parents = [p for p in psutil.Process().parents() if "zbench.launch.process.server" in p.cmdline()]
    folder = tempfile.gettempdir()
    surroundings = {
        "rank": listening(psutil.Process()),
        "servers": [listening(parent) for parent in parents],
        "temporary folder": [folder, os.stat(folder).st_mode & 0o777],
        "headers": os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"],
    }
    print(f"surroundings: {json.dumps(surroundings)}", flush=True)
    return engine


constant = 3


def returns_nothing(*_: object, **more: object) -> None:
    """Forgets to return the engine."""


class OtherOrder:
    """Is right, but rounds in its own order: DDP's averaging and torch's unfused Adam, in plain torch.

    Has no `first_moments`, as peers have none.
    """

    def __init__(self, model: nn.Module, spec: EngineSpec, *_: object, **more: object) -> None:
        self._model, self._spec = model, spec
        self._masters = {n: p.detach().clone() for n, p in model.named_parameters()}
        model.to(_DTYPES[spec.dtype])
        o = spec.optimizer
        self._adam = torch.optim.AdamW(
            list(self._masters.values()), o.lr, o.betas, o.eps, weight_decay=o.weight_decay, foreach=True
        )

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        (loss / self._spec.gradient_accumulation_steps).backward()

    def step(self) -> StepInfo:
        for name, parameter in self._model.named_parameters():
            assert parameter.grad is not None
            average = parameter.grad.float() / dist.get_world_size()
            dist.all_reduce(average)
            self._masters[name].grad = average
            parameter.grad = None
        norm = None
        if self._spec.gradient_clipping:
            norm = float(nn.utils.clip_grad_norm_(self._masters.values(), self._spec.gradient_clipping))
        self._adam.step()
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self._masters[name])
        return StepInfo(norm)

    def full_parameters(self) -> dict[str, Tensor]:
        return {name: master.clone() for name, master in self._masters.items()}

    def memory_by_category(self) -> dict[str, int]:
        return {"parameters": sum(p.nbytes for p in self._model.parameters())}

    def close(self) -> None:
        return


class EveryFourthStepLate(OtherOrder):
    """Sleeps in every fourth step."""

    _taken = 0

    def step(self) -> StepInfo:
        self._taken += 1
        if self._taken % 4 == 0:
            time.sleep(LATE_SECONDS)
        return super().step()


class LastRankLate(OtherOrder):
    """Has nothing left to tell the others when its last rank sleeps."""

    def step(self) -> StepInfo:
        info = super().step()
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(LATE_SECONDS)
        return info
