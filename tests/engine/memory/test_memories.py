"""What every kind of memory promises."""

from abc import ABC, abstractmethod

import pytest
import torch

from tests.engine.far_memory.copies import Copies
from tests.engine.far_memory.memory import FarMemory
from zbench.engine.memory.kinds import DeviceMemory, Memory, PinnedHostMemory

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class MemorySuite(ABC):
    """Inherited by the test of each implementation."""

    @abstractmethod
    def make(self) -> Memory: ...

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("numel", [1, 255, 4096])
    def test_buffers_have_their_length_and_alignment_and_begin_as_zeros(
        self, dtype: torch.dtype, numel: int
    ) -> None:
        memory = self.make()
        buffer = memory.zeros(numel, dtype)
        assert buffer.shape == (numel,)
        assert buffer.dtype == memory.empty(numel, dtype).dtype == dtype
        assert memory.empty(numel, dtype).shape == (numel,)
        assert not buffer.any()
        assert buffer.data_ptr() % 64 == 0

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_values_come_back_after_a_copy_in_and_out(self, dtype: torch.dtype) -> None:
        memory = self.make()
        source = torch.arange(1000).remainder(127).to(dtype)
        back = torch.empty(1000, dtype=dtype)
        held = memory.zeros(1000, dtype)
        arrival = memory.copy_in(source, held)
        arrival.release()
        source.fill_(7.0)  # allowed after release, and not seen by the copy
        arrival.wait()
        departure = memory.copy_out(held, back)
        departure.release()
        held.zero_()
        departure.wait()
        assert torch.equal(back, torch.arange(1000).remainder(127).to(dtype))
        assert departure.is_completed()


class TestDevice(MemorySuite):
    def make(self) -> Memory:
        return DeviceMemory(CPU)


class TestHostBesideACpu(MemorySuite):
    def make(self) -> Memory:
        return PinnedHostMemory(CPU)


class TestFar(MemorySuite):
    """The memory of other tests behaves as a memory must."""

    def make(self) -> Memory:
        self.copies = Copies(seed=3)
        return FarMemory(self.copies)  # type: ignore[return-value]

    def teardown_method(self) -> None:
        assert self.copies.close() == []
