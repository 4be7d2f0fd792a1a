"""Launches happen in the device's primary context; what was current before is so again."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zbench.engine.adam import cuda, cuda_adam, cuda_unavailable_reason, device_kernels
from zbench.engine.adam.cuda import TorchFusedAdam
from zbench.engine.adam.device_kernels import Kernel

CONTEXTS = {0: 0xC0, 1: 0xC1}


class Driver:
    """The functions of CUDA's driver, for two devices; `contexts` is the thread's stack."""

    def __init__(self, launch_error: int = 0) -> None:
        self.contexts: list[int] = [CONTEXTS[0]]
        self.launches: list[tuple[Any, ...]] = []
        self.loaded: list[bytes] = []
        self._launch_error = launch_error

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802 - the driver's names
        handle._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> int:  # noqa: N802
        context._obj.value = CONTEXTS[handle.value]
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        context._obj.value = self.contexts.pop()
        return 0

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:  # noqa: N802
        module._obj.value = self.contexts[-1]
        self.loaded.append(code)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        function._obj.value = module.value + 0x100
        return 0

    def cuLaunchKernel(self, function: Any, *arguments: Any) -> int:  # noqa: N802
        assert function.value == self.contexts[-1] + 0x100, "the function is of the current context"
        *shape, stream, places, extra = arguments
        assert extra is None
        values = (
            ctypes.cast(places[0], ctypes.POINTER(ctypes.c_void_p))[0],
            ctypes.cast(places[1], ctypes.POINTER(ctypes.c_int))[0],
        )
        self.launches.append((*shape, stream.value, *values))
        return self._launch_error

    def cuGetErrorString(self, error: int, text: Any) -> int:  # noqa: N802
        text._obj.value = {2: b"out of memory"}[error]
        return 0


@pytest.mark.parametrize("error", [0, 2])
def test_the_context_before_is_current_again_also_after_an_error(error: int) -> None:
    driver = Driver(error)
    update = Kernel(driver, 1, b"code", "zbench_update")  # type: ignore[arg-type]
    assert driver.contexts == [CONTEXTS[0]]
    refused = pytest.raises(RuntimeError, match="CUDA error 2: out of memory") if error else nullcontext()
    with refused:
        update.launch((7, 1), 256, 0xABC, (ctypes.c_void_p(0xDEF), ctypes.c_int(3)))
    assert driver.launches == [(7, 1, 1, 256, 1, 1, 0, 0xABC, 0xDEF, 3)]
    assert driver.contexts == [CONTEXTS[0]]


def test_a_kernel_is_loaded_once_for_each_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    asked = []
    monkeypatch.setattr(device_kernels, "driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, index))
    stream_of = lambda device: SimpleNamespace(cuda_stream=0xA0 + device.index)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", stream_of)

    def compiled(*request: Any) -> bytes:
        asked.append(request)
        return b"code"

    monkeypatch.setattr(device_kernels, "compiled", compiled)
    device_kernels._kernel.cache_clear()
    try:
        for index in (0, 1, 0):
            device = torch.device("cuda", index)
            arguments = (ctypes.c_void_p(1), ctypes.c_int(3))
            device_kernels.launch("update", device, 7, 256, *arguments, ZBENCH_GRAD=1)
    finally:
        device_kernels._kernel.cache_clear()
    assert asked == [("update", {"ZBENCH_GRAD": 1}, (9, index)) for index in (0, 1)]
    assert len(driver.loaded) == 2
    assert [stream for *_, stream, _, _ in driver.launches] == [0xA0, 0xA1, 0xA0]


@pytest.mark.parametrize(
    ("hip", "version", "reason"),
    [("6.4", None, "this torch is built for ROCm"), (None, None, "this torch is built without CUDA")],
)
def test_without_cuda_torchs_adam_is_used_and_the_reason_told(
    hip: str | None, version: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", version)
    cuda_unavailable_reason.cache_clear()
    try:
        assert reason in (cuda_unavailable_reason() or "")
        assert isinstance(cuda_adam(), TorchFusedAdam)
        with pytest.raises(RuntimeError, match=reason):
            cuda.CudaAdam()
    finally:
        cuda_unavailable_reason.cache_clear()
