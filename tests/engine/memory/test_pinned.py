"""Page-locked memory: whole pages, locked as they are allocated, counted as they are held, and released."""

import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from zbench.engine import Instruments, build_engine
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.spec.engine import EngineSpec

CPU = torch.device("cpu")


class Driver:
    """Stands for CUDA's runtime; `locked`: address -> bytes. `under_way`: copies of these pages. `current`:
    the device that the thread has chosen, if any.
    """

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.under_way: set[int] = set()
        self.current: torch.device | None = None

    @contextmanager
    def chosen(self, device: torch.device) -> Iterator[None]:
        self.current = device
        yield
        self.current = None

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert self.current == CPU, "a context on the first card"
        assert address % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == flags == 0
        self.locked[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 - CUDA's name
        assert self.current == CPU, "a context on the first card"
        assert not self.under_way, "pages were unlocked under a copy"
        del self.locked[address]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    monkeypatch.setattr(torch.cuda, "device", driver.chosen)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: driver.under_way.clear())
    yield driver
    gc.collect()


def pinned() -> PinnedHostMemory:
    """Return the memory beside an accelerator, without one."""
    memory = PinnedHostMemory(CPU)
    memory.pinned = True
    return memory


def test_pages_are_unlocked_when_no_copy_is_under_way(driver: Driver) -> None:
    tensor = pinned().zeros(5, torch.float32)
    driver.under_way.add(tensor.data_ptr())
    view = tensor[2:]
    del tensor
    gc.collect()
    assert list(driver.locked.values()) == [mmap.PAGESIZE], "the view is in them"
    del view
    gc.collect()
    assert not driver.locked


@pytest.mark.parametrize(
    "spec",
    [
        {"zero_stage": 3, "offload_param": "cpu"},
        {"zero_stage": 2, "offload_ratio": 0.5},
        {"zero_stage": 1, "offload_schedule": "speculative", "rollback": "journal"},
    ],
    ids=str,
)
def test_counted_memory_is_what_is_locked_and_released(spec: dict[str, Any], driver: Driver) -> None:
    memory = pinned()
    instruments = Instruments(memories=lambda device: Memories(DeviceMemory(device), memory))
    common = {"dtype": "bfloat16", "gradient_accumulation_steps": 2, "sub_group_size": 256}
    whole = {"offload_optimizer": "cpu", **common, **spec}
    model = nn.Sequential(nn.Linear(37, 53), nn.Linear(53, 7))
    engine = build_engine(model, EngineSpec.model_validate(whole), instruments=instruments)
    for _ in range(2):
        engine.backward(engine.model(torch.ones(2, 37, dtype=torch.bfloat16)).square().mean())
    engine.step()
    counted = {k: v for k, v in engine.memory_by_category().items() if k.startswith("host_")}
    assert sum(counted.values()) == sum(driver.locked.values()) > 0, counted
    engine.close()
    del engine, model
    gc.collect()
    assert not driver.locked
