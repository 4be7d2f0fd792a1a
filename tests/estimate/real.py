"""One rank that trains for real, its memory measured as the worker measures it, or counted by the ledger."""

import gc
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.engine.assembly.build import Instruments
from zbench.estimate.simulate import prepare_step
from zbench.measure.memory import AllocatorMeter
from zbench.measure.shim import SHIM
from zbench.spec.trial import TrialSpec
from zbench.workloads import build_workload


class Sampler(TorchDispatchMode):
    """Reads the allocator between operators: the peak without what kernels allocate for themselves."""

    def __init__(self, meter: AllocatorMeter) -> None:
        super().__init__()
        self.meter, self.peak = meter, 0
        self.scratch: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.meter.reset()
        before = self.meter.live()
        out = func(*args, **(kwargs or {}))
        after, most = self.meter.live(), self.meter.peak()
        self.peak = max(self.peak, before, after)
        if most > max(before, after):
            name = str(func)
            self.scratch[name] = max(self.scratch.get(name, 0), most - max(before, after))
        return out


def measure(group: Any, trial: dict[str, Any], *, sample: bool = False) -> dict[str, Any]:
    """Return the peak of the last of the simulation's steps, and the kernels' scratch where it is sampled."""
    spec = TrialSpec.model_validate(trial)
    workload = build_workload(
        spec.workload, seed=spec.run.seed, world_size=spec.run.world_size, base_dir=Path.cwd()
    )
    gc.collect()
    assert SHIM is not None
    meter = AllocatorMeter(SHIM)
    steps = prepare_step(spec, workload, Path.cwd(), Instruments(), group=group)
    rank = dist.get_rank(group)
    sampler = Sampler(meter)
    peak = 0
    for _ in range(2):
        batches = steps.batches(rank)
        dist.barrier(group)
        meter.reset()
        if sample:
            with sampler:
                steps.trainer.step(batches)
        else:
            steps.trainer.step(batches)
        peak = meter.peak()
        held = steps.engine.memory_by_category()
        del batches
        dist.barrier(group)
        sampler.peak, sampled = 0, sampler.peak
    live = meter.live()
    steps.engine.close()
    return {"peak": sampled if sample else peak, "live": live, "held": held, "scratch": sampler.scratch}
