"""The CUDA library's runtime changes the thread's device; torch's own is put back."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from zbench.engine.adam.cuda import launch


class Driver:
    """What the thread's device is to the driver, which torch's runtime and the library's both set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        monkeypatch.setattr(torch.cuda, "device", self.device)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        try:
            yield
        finally:
            self.current = before

    def library(self, error: int) -> Any:
        def update(device: int, *arguments: object) -> int:
            assert self.current == device, "torch's memory and stream are of this device"
            self.current = device
            return error

        loaded = ctypes.CDLL(None)
        loaded.zbench_cuda_update = update  # type: ignore[assignment]
        loaded.zbench_cuda_error = lambda number: b"out of memory"  # type: ignore[assignment]
        return loaded


@pytest.mark.parametrize("error", [0, 2])
def test_torchs_device_is_the_one_before_also_after_an_error(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch)
    library = driver.library(error)
    refused = pytest.raises(RuntimeError, match="CUDA error 2: out of memory") if error else nullcontext()
    with refused:
        launch(library, library.zbench_cuda_update, torch.device("cuda", 1))
    assert driver.current == 0
