"""Memories that fail at one of the engine's allocations."""

from typing import Any

import torch

from zbench.engine import Instruments
from zbench.engine.memory.kinds import Memories

ALLOCATIONS = ("zeros", "empty")


class Faults:
    """Counts allocations, and has the one with the number `at` raise MemoryError."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.calls = 0

    def call(self, name: str) -> None:
        self.calls += 1
        if self.calls - 1 == self.at:
            raise MemoryError(f"call {self.at}: {name}")

    @property
    def instruments(self) -> Instruments:
        return Instruments(memories=self._memories)

    def _memories(self, device: torch.device) -> Memories:
        memories = Memories.of(device)
        return Memories(Failing(memories.local, self), Failing(memories.host, self))


class Failing:
    """`inner`, whose allocations may fail."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if name not in ALLOCATIONS:
            return member

        def call(*args: Any) -> Any:
            self._faults.call(name)
            return member(*args)

        return call
