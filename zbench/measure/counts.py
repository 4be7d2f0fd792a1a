"""Counts the allocations, operators, kernel launches, FLOPs and instructions of a step.

Counts do not depend on the speed or the load of the machine, so two versions can be compared exactly.
Allocations and retired instructions are read before and after each timed step; the result is the smallest of
all steps. Allocations are those of torch's CPU allocator in all threads, or of the caching allocator on CUDA.
Operators and FLOPs come from one more step after the timed ones, under a dispatch mode, which would slow a
timed step. Instructions are those of user code, by the kernel's performance counter (`perf_event_open`,
Linux).
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.measure.shim import SHIM

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS, _SIZE = 0, 1, 128
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_REASONS = {
    errno.ENOENT: "this machine, a virtual one perhaps, shows no performance-monitoring unit",
    errno.EACCES: "kernel.perf_event_paranoid forbids it; set it to 2 or less",
    errno.EPERM: "kernel.perf_event_paranoid or a container's seccomp profile forbids it",
}


class StepCounts:
    """The smallest counts over several steps. Call `begin` and `end` around each."""

    def __init__(self, device: torch.device) -> None:
        self._sources: dict[str, Callable[[], int]] = {}
        if device.type == "cuda":
            self._sources["allocations"] = lambda: int(
                torch.cuda.memory_stats(device).get("allocation.all.allocated", 0)
            )
        elif SHIM is not None:
            self._sources["allocations"] = SHIM.zbench_memory_allocations
        counter = instruction_counter()
        if counter is not None:
            self._sources["instructions"] = counter
        self._before: dict[str, int] = {}
        self.smallest: dict[str, int] = {}

    def begin(self) -> None:
        self._before = {name: read() for name, read in self._sources.items()}

    def end(self) -> None:
        for name, read in self._sources.items():
            count = read() - self._before[name]
            self.smallest[name] = min(count, self.smallest.get(name, count))


def count_operators(step: Callable[[], object], device: torch.device) -> dict[str, int]:
    """Run `step` and return its operators, FLOPs (torch's formulas) and, on CUDA, kernel launches."""
    from torch.utils.flop_counter import flop_registry

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        operators = flops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.operators += 1
            formula = flop_registry.get(func.overloadpacket)
            if formula is not None:
                self.flops += int(formula(*args, **(kwargs or {}), out_val=out))
            return out

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return whether Dynamo must skip this mode (torch's hook). False if Dynamo is not loaded:
            True would load it, which takes longer than the step.
            """
            return "torch._dynamo" in sys.modules

    launches: dict[str, int] = {}
    with Counting() as counting:  # type: ignore[no-untyped-call]
        if device.type == "cuda":
            launches["kernel_launches"] = _kernel_launches(step)
        else:
            step()
    return {"operators": counting.operators, "flops": counting.flops} | launches


def _kernel_launches(step: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in profiled.key_averages() if "LaunchKernel" in event.key)


def instruction_counter() -> Callable[[], int] | None:
    """Return a function that reads this process's retired user instructions; None if not available."""
    try:
        file = _open()
    except OSError:
        return None
    return lambda: int.from_bytes(os.read(file, 8), "little")


def instruction_problem() -> str | None:
    """Return why instructions cannot be counted on this machine; None if they can."""
    try:
        os.close(_open())
    except OSError as error:
        return _REASONS.get(error.errno or 0, f"perf_event_open: {error.strerror}")
    return None


def _open() -> int:
    """Return the counter's file descriptor. OSError with the kernel's reason."""
    attributes = bytearray(_SIZE)
    struct.pack_into("IIQ", attributes, 0, _HARDWARE, _SIZE, _INSTRUCTIONS)
    struct.pack_into("Q", attributes, 40, _INHERIT | _NO_KERNEL | _NO_HYPERVISOR)
    buffer = (ctypes.c_char * _SIZE).from_buffer(attributes)
    number = _SYSCALL.get(platform.machine(), -1)
    file = int(ctypes.CDLL(None, use_errno=True).syscall(number, buffer, 0, -1, -1, 0))
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file
