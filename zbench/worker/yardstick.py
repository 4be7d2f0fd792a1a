"""The machine's yardstick as one rank runs it: fixed native work (csrc/yardstick, csrc/cuda) in turns."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

import torch

from zbench import _native
from zbench.engine.adam.device_kernels import kernel
from zbench.job.jobs import RankJob, threads_per_rank, write_json
from zbench.job.turns import Turns, turn_lengths
from zbench.spec.trial import TrialSpec
from zbench.worker.process import device_of

_ROUNDS = 2
_ORDER = ("compute", "memory", "compute", "meeting", "compute")
"""Each part is spread over a turn: what else runs on the machine takes it for some milliseconds at a time."""

_PRODUCTS, _COPIES, _MEETINGS = 16, 16, 16
"""Of a sample on CUDA."""

_SIDE = 2048
_BLOCK_SIDE = 64
_ARRAY_BYTES = 1 << 27
"""Of the matrices, 17 GFLOP a product, and of what a block computes (csrc/cuda/yardstick.cu). Two arrays
exceed every cache of 2025."""


def run_machine(job: RankJob) -> None:
    """Run each part in each turn of a trial like this one; rank 0 writes its mean seconds in each turn."""
    trial = TrialSpec.model_validate(job.trial)
    place = Path(urlsplit(job.init_method).path).with_name("yardstick")
    threads = threads_per_rank(trial, job.local_world_size)
    stick = _native.Yardstick(str(place), job.rank, job.world_size, threads)
    device = device_of(trial.run.device, job.local_rank)
    parts = _on_cuda(stick, device) if device.type == "cuda" else _on_cpu(stick)
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    with Turns(job.turns, job.world_size) as turns:
        for _ in turn_lengths(trial.run.steps):
            turns.wait()
            samples = [(name, parts[name]()) for _ in range(_ROUNDS) for name in _ORDER]
            for name, values in seconds.items():
                values.append(fmean(value for part, value in samples if part == name))
        turns.over()
    if job.rank == 0:
        write_json(Path(job.result_path), {"version": _native.YARDSTICK_VERSION, "seconds": seconds})


def _on_cpu(stick: _native.Yardstick) -> dict[str, Callable[[], float]]:
    return {"compute": stick.compute, "memory": stick.memory, "meeting": stick.meeting}


class Products:
    """Matrix products on a device's tensor cores, and copies within its memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device).cuda_stream
        self._arrays = torch.empty((2, _ARRAY_BYTES), dtype=torch.uint8, device=device)
        a, out = (ctypes.c_void_p(array.data_ptr()) for array in self._arrays)
        b = ctypes.c_void_p(self._arrays.data_ptr() + 2 * _SIDE * _SIDE)
        self._operands = a, b, out
        numbers = ctypes.c_int64(self._arrays.nbytes // 2)
        kernel("yardstick", "fill", device).launch((1024, 1), 256, self._stream, (a, numbers))
        self._product = kernel("yardstick", "product", device)
        torch.cuda.synchronize(device)

    def run(self, times: int) -> None:
        """Multiply so many times; return when the device has."""
        blocks = _SIDE // _BLOCK_SIDE, _SIDE // _BLOCK_SIDE
        for _ in range(times):
            self._product.launch(blocks, 128, self._stream, self._operands)
        torch.cuda.synchronize(self._device)

    def copy(self, times: int) -> None:
        """Copy an array so many times; return when the device has."""
        for _ in range(times):
            self._arrays[1].copy_(self._arrays[0])
        torch.cuda.synchronize(self._device)


def _on_cuda(stick: _native.Yardstick, device: torch.device) -> dict[str, Callable[[], float]]:
    """Return the parts on a device: matrix products, copies within its memory, and products between meetings.

    Ranks meet on the host, so that no library's collective is part of it.
    """
    products = Products(device)

    def meet() -> None:
        for _ in range(_MEETINGS):
            products.run(1)
            stick.meet()

    work: dict[str, Callable[[], None]] = {
        "compute": partial(products.run, _PRODUCTS),
        "memory": partial(products.copy, _COPIES),
        "meeting": meet,
    }
    return {name: partial(stick.slowest, part) for name, part in work.items()}
