"""Measures the peak memory of a process tree from another process."""

import threading
from contextlib import suppress

import psutil

from zbench.gpus import bytes_by_process
from zbench.record.record import MemoryPeaks

_PAUSE_SECONDS = 0.1


class TreeMemory:
    """Samples a process and its descendants in a thread, until `stop`.

    The memory of a process is its unique set size (USS): the bytes that its end would free. Samples are 0.1 s
    apart, so shorter peaks can be missed and the figures are marked `exact: false`.
    """

    def __init__(self, root: int, *, device: bool) -> None:
        """device: also ask the driver, where NVML can be loaded."""
        self._root = root
        self._asks_device = device and bytes_by_process() is not None
        self._own = self._resident = self._tree = self._device = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> MemoryPeaks:
        """Return the peaks of any one process; category `process_tree` is the peak of the sum over all."""
        self._end.set()
        self._thread.join()
        device = self._device if self._asks_device else self._own
        host = self._own if self._asks_device else 0
        return MemoryPeaks(device, host, self._resident, {"process_tree": self._tree}, exact=False)

    def _watch(self) -> None:
        while not self._end.wait(_PAUSE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        unique = {}
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._root)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                    figures = process.memory_full_info()
                    unique[process.pid] = figures.uss
                    self._resident = max(self._resident, figures.rss)
        if unique:
            self._own, self._tree = max(self._own, *unique.values()), max(self._tree, sum(unique.values()))
        if self._asks_device:
            self._device = max(self._device, _device_bytes(set(unique)))


def _device_bytes(pids: set[int]) -> int:
    """Return the largest device memory of one of these processes, in bytes, as the driver reports it."""
    held = bytes_by_process() or {}
    return max((size for pid, size in held.items() if pid in pids), default=0)
