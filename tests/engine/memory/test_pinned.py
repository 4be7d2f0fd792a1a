"""Page-locked memory is counted as torch's allocator holds it: each block is rounded up to a power of two."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zbench.engine import Instruments, build_engine
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.spec.engine import EngineSpec

CPU = torch.device("cpu")


class Allocator(PinnedHostMemory):
    """Ordinary memory, held in blocks as page-locked memory is; `held`: bytes of the blocks in use."""

    held = 0

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self.empty(numel, dtype).zero_()

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        block = 1
        while block < numel * dtype.itemsize:
            block *= 2
        tensor = torch.empty(numel, dtype=dtype)
        self._count(block if numel else 0)
        weakref.finalize(tensor.untyped_storage(), self._count, -block if numel else 0)
        return tensor

    def occupied(self, nbytes: int) -> int:
        self.pinned = True
        return super().occupied(nbytes)

    def _count(self, nbytes: int) -> None:
        self.held += nbytes


@pytest.mark.parametrize(("nbytes", "held"), [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (3 << 20, 4 << 20)])
def test_a_block_occupies_the_next_power_of_two(nbytes: int, held: int) -> None:
    assert Allocator(CPU).occupied(nbytes) == held


@pytest.mark.parametrize(
    "spec",
    [
        {"zero_stage": 2},
        {"zero_stage": 3, "offload_param": "cpu"},
        {"zero_stage": 2, "offload_ratio": 0.5},
        {"zero_stage": 1, "offload_schedule": "speculative"},
        {"zero_stage": 1, "offload_schedule": "speculative", "rollback": "journal"},
    ],
    ids=str,
)
def test_what_is_counted_is_what_the_allocator_holds(spec: dict[str, Any]) -> None:
    memory = Allocator(CPU)
    instruments = Instruments(memories=lambda device: Memories(DeviceMemory(device), memory))
    common = {"dtype": "bfloat16", "gradient_accumulation_steps": 2, "sub_group_size": 256}
    whole = {"offload_optimizer": "cpu", **common, **spec}
    model = nn.Sequential(nn.Linear(37, 53), nn.Linear(53, 7))
    engine = build_engine(model, EngineSpec.model_validate(whole), instruments=instruments)
    for _ in range(2):
        engine.backward(engine.model(torch.ones(2, 37, dtype=torch.bfloat16)).square().mean())
    engine.step()
    counted = {k: v for k, v in engine.memory_by_category().items() if k.startswith("host_")}
    assert sum(counted.values()) == memory.held > 0, counted
    engine.close()
