"""Staging buffers in host memory that are used again, because page-locked memory is slow to allocate."""

import torch
from torch import Tensor

from zbench.engine.memory.kinds import Memory
from zbench.engine.transport.scratch import ScratchPool


class StagingPool(ScratchPool):
    """Uninitialised buffers of one memory."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.device)
        self._memory = memory

    def _made(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._memory.empty(numel, dtype)

    def _occupied(self, buffer: Tensor) -> int:
        return self._memory.occupied(buffer.nbytes)
