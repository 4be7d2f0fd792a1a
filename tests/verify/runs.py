"""Reference runs of small workloads, and ways to make another run of the same training."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbench.spec.engine import EngineSpec
from zbench.spec.trial import accumulation
from zbench.spec.workload import WorkloadSpec
from zbench.verify.plain_training import PlainTask, make_reference
from zbench.verify.trajectory import Reference
from zbench.workloads import Batch, build_workload

MLP = {"model": "mlp", "options": {"hidden": 64}, "sequence_length": 32, "micro_batch_size": 4}
GPT = {"model": "gpt", "options": {"layers": 2, "width": 64, "heads": 4}, "sequence_length": 32}


def task(
    workload: dict[str, object], *, steps: int = 5, seed: int = 0, world_size: int = 2, **engine: object
) -> PlainTask:
    spec = EngineSpec.model_validate(engine)
    shape = WorkloadSpec.model_validate(workload)
    made = build_workload(shape, seed=seed, world_size=world_size, base_dir=Path())
    return PlainTask(made, spec, accumulation(spec, shape), steps, torch.device("cpu"))


def reference(of: PlainTask, *, truth: bool = True) -> Reference:
    return make_reference(of, truth=truth, on_step=lambda done, total: None)


def compute_on_core(number: int) -> None:
    """Keep this process to one core, and torch to one thread: several threads take thirty times as long for
    small operations if they wait for each other on busy cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    torch.set_num_threads(1)


@dataclasses.dataclass(frozen=True)
class ReversedSamples:
    """Data whose micro-batches have their samples in the opposite order: the same training, other
    rounding."""

    data: object

    def draw(self, seed: int, samples: int) -> Batch:
        return tuple(tensor.flip(0) for tensor in self.data.draw(seed, samples))  # type: ignore[attr-defined]


def reversed_samples(of: PlainTask) -> PlainTask:
    workload = dataclasses.replace(of.workload, data=ReversedSamples(of.workload.data))
    return dataclasses.replace(of, workload=workload)


def training(model: Callable[[], nn.Module], **more: Any) -> PlainTask:
    """Return the task of training what `model` makes, on tokens and targets of MLP's shapes."""
    of = task(MLP, **more)
    return dataclasses.replace(of, workload=dataclasses.replace(of.workload, factory=model))
