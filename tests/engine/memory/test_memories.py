"""What every kind of memory promises."""

import pytest
import torch

from zbench.engine.memory.kinds import DeviceMemory, Memory, PinnedHostMemory

CPU = torch.device("cpu")
each_kind = pytest.mark.parametrize("memory", [DeviceMemory(CPU), PinnedHostMemory(CPU)])


@each_kind
@pytest.mark.parametrize("numel", [1, 4095])
def test_buffers_are_aligned_and_begin_as_zeros(memory: Memory, numel: int) -> None:
    buffer = memory.zeros(numel, torch.bfloat16)
    assert (buffer.shape, buffer.dtype) == ((numel,), torch.bfloat16)
    assert not buffer.any()
    assert buffer.data_ptr() % 64 == 0


@each_kind
def test_values_come_back_after_a_copy_in_and_out(memory: Memory) -> None:
    source = torch.arange(1000.0)
    back = torch.empty(1000)
    held = memory.zeros(1000, torch.float32)
    arrival = memory.copy_in(source, held)
    arrival.release()
    source.fill_(7.0)  # allowed after release, and not seen by the copy
    arrival.wait()
    departure = memory.copy_out(held, back)
    departure.release()
    held.zero_()
    departure.wait()
    assert torch.equal(back, torch.arange(1000.0))
    assert departure.is_completed()
