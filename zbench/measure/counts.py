"""What a step does, counted instead of timed: allocations, operators, kernel launches, FLOPs, instructions.

Counts do not depend on how fast or how loaded the machine is, so two versions can be compared exactly.
Allocations (of torch's CPU allocator, every thread; of the caching allocator on CUDA) and instructions
retired are read around each timed step; the smallest of all steps counts. Operators and FLOPs are those of
one more step after the measured ones, under a dispatch mode, which would slow a timed step down.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.measure.instructions import instruction_counter
from zbench.measure.shim import SHIM


class StepCounts:
    """The smallest counts over several steps. Call `begin` and `end` around each."""

    def __init__(self, device: torch.device) -> None:
        self._sources: dict[str, Callable[[], int]] = {}
        if device.type == "cuda":
            self._sources["allocations"] = lambda: _cuda_allocations(device)
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
    """Run `step` once more and return its operators, FLOPs and, on CUDA, kernel launches."""
    counting = _SkippedCountingMode() if "torch._dynamo" in sys.modules else _CountingMode()
    launches: dict[str, int] = {}
    with counting:
        if device.type == "cuda":
            launches["kernel_launches"] = _kernel_launches(step)
        else:
            step()
    return {"operators": counting.operators, "flops": counting.flops} | launches


class _CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what reaches the dispatcher; floating-point operations by torch's own formulas."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = self.flops = 0
        self._formulas = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        formula = self._formulas.get(func.overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=out))
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own hook. A mode that Dynamo skips imports it, which takes longer than the counting."""
        return False


class _SkippedCountingMode(_CountingMode):  # type: ignore[no-untyped-call]
    """The same for a process that has Dynamo, which must not compile the counting."""

    __torch_dispatch__ = _CountingMode.__torch_dispatch__

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True


def _kernel_launches(step: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in found.key_averages() if "LaunchKernel" in event.key)


def _cuda_allocations(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))
