"""Builds a trial's engine whole and in shards, for `test_building`; runs inside the pool's ranks."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.assembly.build import Instruments
from zbench.measure.clock import PhaseClock
from zbench.measure.memory import allocator_meter
from zbench.measure.shim import SHIM
from zbench.spec.trial import TrialSpec
from zbench.worker.loop import Trainer
from zbench.workloads import build_workload
from zbench.workloads.zoo import ZooModel, table

_IMAGES = ("image_size", "patch_size")


def wide(architecture: str) -> nn.Module:
    """Return a model of the zoo with four times the width."""
    entry = table()[architecture]
    widths = {k: 4 * v for k, v in entry.sizes.items() if v in (8, 16, 32) and k not in _IMAGES}
    return ZooModel(replace(entry, sizes=entry.sizes | widths), checkpointing=False)


def build(group: dist.ProcessGroup, trial: dict[str, Any]) -> tuple[dict[str, Tensor], int, int]:
    """Return the values that the engine begins with, the most bytes held while it is built, and its state."""
    torch.manual_seed(dist.get_rank(group))
    spec = TrialSpec.model_validate(trial)
    workload = build_workload(spec.workload, seed=0, world_size=spec.run.world_size, base_dir=Path.cwd())
    gc.collect()
    assert SHIM is not None
    meter = allocator_meter(SHIM)
    meter.reset()
    before = meter.live()
    cpu = torch.device("cpu")
    trainer = Trainer(spec, workload, Path.cwd(), Instruments(), device=cpu, clock=PhaseClock(), group=group)
    peak = meter.peak() - before
    values = trainer.engine.full_parameters()
    ((_, _, batch),) = trainer.batches(0)
    trainer.engine.backward(workload.loss(getattr(trainer.engine, "module", trainer.model), batch))
    held = trainer.engine.memory_by_category()  # with the gradients
    trainer.engine.step()
    trainer.engine.close()
    kinds = ("parameters", "gradients", "master", "moments")
    return values, peak, sum(size for name, size in held.items() if name.endswith(kinds))


class Copies(nn.Module):
    """Its own code reads a weight of one part while it sets another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        first = self.first.weight
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(first, 1.0)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor]:
        return (torch.randn(size, 4, generator=generator),)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)).square().mean()
