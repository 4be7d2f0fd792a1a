"""The functions of csrc/cuda on a device, by CUDA's driver: compiled and loaded at first use.

They run in the primary context, which is torch's. A thread that launches need not have a current device: the
context is made current for the call, and then what was before.
"""

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from zbench.engine.adam.nvrtc import compiled

Number = ctypes.c_void_p | ctypes.c_int | ctypes.c_int64


@functools.cache
def driver() -> ctypes.CDLL:
    """Load CUDA's driver; RuntimeError where there is none, or no device."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise RuntimeError("there is no CUDA driver on this machine") from None
    check(library, library.cuInit(0))
    return library


def check(library: ctypes.CDLL, error: int) -> None:
    """Raise RuntimeError for an error of the driver."""
    if error != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorString(error, ctypes.byref(text))
        raise RuntimeError(f"CUDA error {error}: {(text.value or b'unknown').decode()}")


class Kernel:
    """One function on one device."""

    def __init__(self, library: ctypes.CDLL, device: int, code: bytes, name: str) -> None:
        self._library = library
        self._context = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        handle, module = ctypes.c_int(), ctypes.c_void_p()
        check(library, library.cuDeviceGet(ctypes.byref(handle), device))
        check(library, library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle))
        with self._current():
            check(library, library.cuModuleLoadData(ctypes.byref(module), code))
            status = library.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode())
            check(library, status)

    def launch(self, blocks: tuple[int, int], threads: int, stream: int, arguments: Sequence[Number]) -> None:
        """Start blocks[0] x blocks[1] blocks of `threads` threads on a stream of torch's; RuntimeError of the
        driver's.
        """
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        shape = (*blocks, 1, threads, 1, 1, 0)
        where = ctypes.c_void_p(stream)
        with self._current():
            error = self._library.cuLaunchKernel(self._function, *shape, where, places, None)
        check(self._library, error)

    @contextmanager
    def _current(self) -> Iterator[None]:
        check(self._library, self._library.cuCtxPushCurrent_v2(self._context))
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def kernel(unit: str, name: str, device: torch.device, **macros: int) -> Kernel:
    """Return the function zbench_`name` of csrc/cuda/`unit`.cu for a device; RuntimeError with the reason."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return _kernel(unit, name, index, tuple(macros.items()))


@functools.cache
def _kernel(unit: str, name: str, device: int, macros: tuple[tuple[str, int], ...]) -> Kernel:
    code = compiled(unit, dict(macros), torch.cuda.get_device_capability(device))
    return Kernel(driver(), device, code, f"zbench_{name}")


def launch(
    name: str, device: torch.device, blocks: int, threads: int, *arguments: Number, **macros: int
) -> None:
    """Launch a function that has a unit of its own on torch's current stream."""
    stream = torch.cuda.current_stream(device).cuda_stream
    kernel(name, name, device, **macros).launch((blocks, 1), threads, stream, arguments)
