"""Instruments that fail at one of the engine's calls: an allocation, or a collective."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.assembly import build
from zbench.engine.engine import Core
from zbench.engine.memory.kinds import Memories
from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.engine.optimizer.step_policies import Policies
from zbench.spec.engine import EngineSpec

ALLOCATIONS = ("zeros", "empty")
COLLECTIVES = ("reduce_scatter", "all_gather", "all_gather_small", "broadcast", "barrier")


class Faults:
    """Counts calls while it is armed, and has the one with the number `at` raise MemoryError."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._armed = False
        self.at: int | None = None
        self.calls = 0

    @contextmanager
    def armed(self) -> Iterator[None]:
        self._armed, self.calls = True, 0
        try:
            yield
        finally:
            self._armed = False

    def call(self, name: str) -> None:
        if self._armed and name in self._names:
            self.calls += 1
            if self.calls - 1 == self.at:
                raise MemoryError(f"call {self.at}: {name}")

    @property
    def instruments(self) -> Instruments:
        return Instruments(wrap_collectives=lambda inner: Failing(inner, self), memories=self._memories)

    def _memories(self, device: torch.device) -> Memories:
        found = Memories.of(device)
        return Memories(Failing(found.local, self), Failing(found.host, self))


class Failing:
    """`inner`, whose calls may fail."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in (*ALLOCATIONS, *COLLECTIVES):
            return found

        def call(*args: Any) -> Any:
            self._faults.call(name)
            return found(*args)

        return call


Exchange = tuple[int, bool, bool]
"""Of a core that was put in place: the calls that did, whether a backward was counted, and whether a gradient
was there."""


def build_watched(
    model: nn.Module, spec: EngineSpec, faults: Faults, group: dist.ProcessGroup | None = None
) -> tuple[Engine, list[Exchange]]:
    """Return an engine, and a list that gets an entry whenever it puts another core in place. `faults` are
    armed while it builds one.
    """
    seen: list[Exchange] = []

    def engine_of(
        model: nn.Module,
        build_core: Callable[[Core | None], Callable[[], Core]],
        admit: Any,
        policies: Policies,
        groups: list[ParamGroup],
    ) -> Engine:
        def watched(old: Core | None) -> Callable[[], Core]:
            if old is None:
                return build_core(None)
            with faults.armed():
                put_in_place = build_core(old)

            def exchange() -> Core:
                at, faults.at = faults.at, None
                with faults.armed():
                    core = put_in_place()
                faults.at = at
                seen.append((faults.calls, policies.accumulation.count > 0, any(old.gradients.contributed)))
                return core

            return exchange

        return Engine(model, watched, admit, policies, groups)

    with mock.patch.object(build, "Engine", engine_of):
        return build_engine(model, spec, group, instruments=faults.instruments), seen
