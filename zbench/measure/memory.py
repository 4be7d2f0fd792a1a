"""Peak bytes of a step:

Device bytes on CUDA: bytes allocated from torch's caching allocator on this rank's device. Device bytes on
the CPU: bytes allocated from torch's CPU allocator in this process since the meter was created, minus the
offloaded host memory (the engine's `host_*` categories). Temporary copies on the way to host memory count as
device bytes, so offload never looks better than it is. Neither includes allocations outside tensors (Python,
libraries, file mappings). Host bytes: the engine's `host_*` categories. RSS: the process's peak by the
kernel, everything included.

On the CPU the exact peak needs the library of `zbench.measure.shim`. Without it the growth of the peak RSS is
used, which is accurate to about a third only and is marked `exact: false`.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from zbench import clocks
from zbench.gpus import bytes_by_process
from zbench.measure.shim import SHIM, WHY_NOT, Shim
from zbench.record.record import MemoryPeaks

ACTIVATIONS = "activations"
_HOST = "host_"
_TEST_BYTES = 1_000_003
_PATIENCE, _PAUSE = 0.25, 0.0005  # seconds


class PeakMeter:
    """Measures the peak of the bytes allocated for tensors, minus those allocated when the meter was made."""

    def __init__(
        self, reset: Callable[[], None], peak: Callable[[], int], live: Callable[[], int], *, exact: bool
    ) -> None:
        """reset: starts a new peak. peak: returns the peak since then. live: returns the current bytes."""
        self.reset, self._peak, self._live, self.exact = reset, peak, live, exact
        reset()
        self._base = live()

    def peak(self) -> int:
        """Return the peak since `reset`, in bytes."""
        return max(0, self._peak() - self._base)

    def live(self) -> int:
        """Return the current bytes; always 0 for a meter of the RSS."""
        return self._live() - self._base


def allocator_meter(shim: Shim) -> PeakMeter:
    """Return an exact meter of torch's CPU allocator, for all threads."""
    peak, live = shim.zbench_memory_peak_bytes, shim.zbench_memory_live_bytes
    return PeakMeter(shim.zbench_memory_reset_peak, peak, live, exact=True)


def cuda_meter(device: torch.device) -> PeakMeter:
    """Return a meter of torch's caching allocator on one CUDA device."""
    return PeakMeter(
        partial(torch.cuda.reset_peak_memory_stats, device),
        partial(torch.cuda.max_memory_allocated, device),
        partial(torch.cuda.memory_allocated, device),
        exact=True,
    )


def self_test(shim: Shim) -> str | None:
    """Return None if the library counts an allocation of known size correctly, else what it counted."""
    before = shim.zbench_memory_live_bytes()
    shim.zbench_memory_reset_peak()
    allocation = torch.empty(_TEST_BYTES, dtype=torch.uint8)
    live = shim.zbench_memory_live_bytes() - before
    del allocation
    after, peak = shim.zbench_memory_live_bytes() - before, shim.zbench_memory_peak_bytes() - before
    if (live, after, peak) == (_TEST_BYTES, 0, _TEST_BYTES):
        return None
    return f"of {_TEST_BYTES} bytes it counted {live} live, {peak} at the peak and {after} after release"


def choose_meter(device: torch.device) -> tuple[PeakMeter, str | None]:
    """Return the best meter for this device, and a warning if it is not exact.

    Collects garbage first: garbage that is freed after the meter starts would lower the measured peak.
    """
    gc.collect()
    if device.type == "cuda":
        return cuda_meter(device), None
    why = WHY_NOT if SHIM is None else self_test(SHIM)
    if SHIM is not None and why is None:
        return allocator_meter(SHIM), None
    start = rss_peak()
    meter = PeakMeter(reset_rss_peak, lambda: rss_peak() - start, lambda: 0, exact=False)
    return meter, f"memory figures are estimates from the process's high-water mark: {why}"


def reset_rss_peak() -> None:
    """Reset the process's peak RSS to its current RSS, if the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # then the peak covers the whole life of the process and can only be larger
        return


def rss_peak() -> int:
    """Return the peak RSS of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class StepMemory:
    """The largest figures over several steps. Call `begin` before each step and `end` after it."""

    def __init__(self, meter: PeakMeter, device: torch.device) -> None:
        self._meter, self._device = meter, device
        self._peak = self._rss = self._reserved = 0

    def begin(self) -> None:
        self._meter.reset()
        reset_rss_peak()

    def end(self) -> None:
        self._peak = max(self._peak, self._meter.peak())
        self._rss = max(self._rss, rss_peak())
        if self._device.type == "cuda":
            self._reserved = max(self._reserved, torch.cuda.max_memory_reserved(self._device))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the body, which is no part of a step, and wait up to _PATIENCE until its memory is freed.

        The threads of a process group free their tensors shortly after a collective has ended.
        """
        before = self._meter.live()
        yield
        give_up = clocks.monotonic() + _PATIENCE
        while self._meter.live() > before and clocks.monotonic() < give_up:
            time.sleep(_PAUSE)

    def summary(self, persistent: Mapping[str, int]) -> MemoryPeaks:
        """Return the peaks and the categories: those of `persistent`, and `activations` for the rest.

        persistent: the engine's category -> bytes. `activations` includes temporaries and batches.
        """
        host = sum(size for name, size in persistent.items() if name.startswith(_HOST))
        on_cuda = self._device.type == "cuda"
        device = self._peak if on_cuda else max(0, self._peak - host)
        on_device = sum(persistent.values()) - host
        categories = {**persistent, ACTIVATIONS: max(0, device - on_device)}
        reserved, context = (self._reserved, context_bytes(self._device)) if on_cuda else (None, None)
        return MemoryPeaks(device, host, self._rss, categories, self._meter.exact, reserved, context)


def context_bytes(device: torch.device) -> int | None:
    """Return what this process holds of its GPU beside torch's allocator; None where NVML does not know the
    process, as in a container that numbers its own.
    """
    held = (bytes_by_process() or {}).get(os.getpid())
    return max(0, held - torch.cuda.memory_reserved(device)) if held else None


def largest(of_ranks: list[MemoryPeaks]) -> MemoryPeaks:
    """Return the largest figures over ranks; categories: of the rank with the largest device peak."""
    fullest = max(of_ranks, key=lambda memory: memory.peak_device_bytes or 0)
    return MemoryPeaks(
        peak_device_bytes=fullest.peak_device_bytes,
        peak_host_bytes=max(memory.peak_host_bytes or 0 for memory in of_ranks),
        peak_rss_bytes=max(memory.peak_rss_bytes or 0 for memory in of_ranks),
        by_category=fullest.by_category,
        exact=all(memory.exact for memory in of_ranks),
        peak_reserved_bytes=max(m.peak_reserved_bytes or 0 for m in of_ranks) or None,
        context_bytes=max(m.context_bytes or 0 for m in of_ranks) or None,
    )
