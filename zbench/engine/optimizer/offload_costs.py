"""Measures what it costs to keep the optimizer state on the host, on a sample of it."""

import statistics
import time
from collections.abc import Callable

import torch

from zbench.engine.adam import AdamTask, Hyper, NativeAdam, Slot
from zbench.engine.memory.kinds import Memory

PIECE = 1 << 20  # elements: more than the caches of most machines hold, some milliseconds of work
REPEATS = 5


def measure_offload_costs(
    elements: int,
    memory: Memory,
    device: torch.device,
    dtype: torch.dtype,
    moments: torch.dtype,
    threads: int,
) -> tuple[float, float]:
    """Return two times in seconds: copying `elements` gradients to `memory` and parameters (`dtype`) back,
    and updating them with `threads` threads.
    """
    size = max(min(PIECE, elements), 1)
    near, far = torch.zeros(size, device=device), memory.zeros(size, torch.float32)
    out, values = memory.zeros(size, dtype), torch.zeros(size, dtype=dtype, device=device)
    slot = Slot(memory.zeros(size, torch.float32), memory.zeros(size, moments), memory.zeros(size, moments))
    task = AdamTask(slot, far, 1, Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01), param_out=out)
    adam = NativeAdam(threads)

    def copy() -> None:
        memory.copy_in(near, far).wait()  # the whole copy is timed; no value depends on it
        values.copy_(out)

    return _seconds(copy) * elements / size, _seconds(lambda: adam.update([task])) * elements / size


def _seconds(work: Callable[[], None]) -> float:
    """Return the median time of `work`, after one warm-up."""
    taken = []
    for _ in range(1 + REPEATS):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])
