"""Instruments that fail at one of the engine's calls: an allocation, or a collective."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zbench.engine import Engine, Instruments
from zbench.engine.memory.kinds import Memories

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


def watch_rebuilds(engine: Engine, faults: Faults) -> list[tuple[int, bool, bool]]:
    """Arm `faults` while `engine` builds a core. Return a list that gets an entry for each core that is put
    in place: the calls that did, whether a backward was counted, and whether a gradient was there.
    """
    build, seen = engine._build_core, list[tuple[int, bool, bool]]()

    def watched(old: Any) -> Callable[[], Any]:
        with faults.armed():
            put_in_place = build(old)

        def exchange() -> Any:
            at, faults.at = faults.at, None
            with faults.armed():
                core = put_in_place()
            faults.at = at
            seen.append(
                (faults.calls, engine._policies.accumulation.count > 0, any(old.gradients.contributed))
            )
            return core

        return exchange

    engine._build_core = watched
    return seen
