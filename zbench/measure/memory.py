"""Peak bytes of a step. What each figure counts:

device bytes, on CUDA: what torch's caching allocator has handed out on this rank's device. Device bytes, on
the CPU: what torch's CPU allocator has handed out to this process since the meter was made, less what lives
in offloaded host memory (the engine's `host_*` categories). A temporary on its way to host memory is counted
as device bytes, so the figure never flatters an offload. Allocations outside tensors (Python, libraries, file
mappings) are in neither. host bytes: the engine's `host_*` categories. RSS: the kernel's high-water mark of
the process, everything included.

On the CPU the exact peak needs the library of `zbench.measure.shim`; without it the growth of the RSS
high-water mark stands in, which is rough (within about a third) and marked `exact: false`.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from zbench.measure.shim import SHIM, WHY_NOT, Shim
from zbench.record.record import MemoryPeaks

ACTIVATIONS = "activations"
_HOST = "host_"
_TEST_BYTES = 1_000_003
_PATIENCE, _PAUSE = 0.25, 0.0005  # seconds


class PeakMeter:
    """Measures the most bytes that tensors held at once, above what was held when the meter was made."""

    def __init__(
        self, reset: Callable[[], None], peak: Callable[[], int], live: Callable[[], int], *, exact: bool
    ) -> None:
        """reset: begins a new peak. peak, live: the most bytes held since, and those held now."""
        self.reset, self._peak, self._live, self.exact = reset, peak, live, exact
        reset()
        self._base = live()

    def peak(self) -> int:
        """Return the most bytes held at once since `reset`."""
        return max(0, self._peak() - self._base)

    def live(self) -> int:
        """Return the bytes held now, where the meter can tell; else 0."""
        return self._live() - self._base


def allocator_meter(shim: Shim) -> PeakMeter:
    """Return a meter of torch's CPU allocator, to the byte, every thread included."""
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
    """Return None if the library sees an allocation of known size, else what it saw instead."""
    before = shim.zbench_memory_live_bytes()
    shim.zbench_memory_reset_peak()
    known = torch.empty(_TEST_BYTES, dtype=torch.uint8)
    live = shim.zbench_memory_live_bytes() - before
    del known
    after, peak = shim.zbench_memory_live_bytes() - before, shim.zbench_memory_peak_bytes() - before
    if (live, after, peak) == (_TEST_BYTES, 0, _TEST_BYTES):
        return None
    return f"of {_TEST_BYTES} bytes it counted {live} live, {peak} at the peak and {after} after release"


def choose_meter(device: torch.device) -> tuple[PeakMeter, str | None]:
    """Return the best meter for this device, and a warning where its figures are not exact.

    Garbage is collected first: given back later, it would be missing from what was handed out since.
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
    """Set the kernel's high-water mark to the present size, where the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # then the mark covers the whole life of the process, which only makes it larger
        return


def rss_peak() -> int:
    """Return the high-water mark of this process's resident memory, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class StepMemory:
    """The largest figures over several steps. Call `begin` and `end` around each, and nothing else in
    between."""

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
        """Do something between steps that is not the trial's, and wait until its memory is given back.

        A process group's own threads let go of what they sent a little after the collective is over.
        """
        before = self._meter.live()
        yield
        give_up = time.monotonic() + _PATIENCE
        while self._meter.live() > before and time.monotonic() < give_up:
            time.sleep(_PAUSE)

    def summary(self, persistent: Mapping[str, int]) -> MemoryPeaks:
        """Return the peaks, with the engine's persistent categories; the rest of the peak is `activations`.

        `activations` is what is neither parameter nor engine state at the peak: activations, temporaries,
        batches.
        """
        host = sum(size for name, size in persistent.items() if name.startswith(_HOST))
        on_cuda = self._device.type == "cuda"
        device = self._peak if on_cuda else max(0, self._peak - host)
        on_device = sum(persistent.values()) - host
        categories = {**persistent, ACTIVATIONS: max(0, device - on_device)}
        reserved = self._reserved if on_cuda else None
        return MemoryPeaks(device, host, self._rss, categories, self._meter.exact, reserved)


def largest(of_ranks: list[MemoryPeaks]) -> MemoryPeaks:
    """Return the largest figures over ranks; the categories are those of the rank with the largest device
    peak."""
    fullest = max(of_ranks, key=lambda memory: memory.peak_device_bytes or 0)
    return MemoryPeaks(
        peak_device_bytes=fullest.peak_device_bytes,
        peak_host_bytes=max(memory.peak_host_bytes or 0 for memory in of_ranks),
        peak_rss_bytes=max(memory.peak_rss_bytes or 0 for memory in of_ranks),
        by_category=fullest.by_category,
        exact=all(memory.exact for memory in of_ranks),
        peak_reserved_bytes=max((m.peak_reserved_bytes or 0 for m in of_ranks), default=0) or None,
    )
