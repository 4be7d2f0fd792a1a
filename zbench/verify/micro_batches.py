"""Whether rows whose micro-batches have other sizes train the same step.

With `workload.global_batch_size` such rows have the same samples in each step. If the loss is a mean over
samples, their gradients are the same in exact arithmetic. The float64 runs of their references show it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zbench._nudge import mixes_samples
from zbench.verify.diagnosis import percent
from zbench.verify.limits import LEAST_SHARE
from zbench.verify.trajectory import Reference
from zbench.verify.verdict import Judgement
from zbench.workloads.workload import Data, micro_batches_per_draw


def exact_difference(reference: Reference, other: Reference) -> float | None:
    """Return by which share the first gradients of two float64 runs differ; None if there are none."""
    runs = [of.true_sketches for of in (reference, other)]
    if any(len(run) < 2 for run in runs) or runs[0].shape[1:] != runs[1].shape[1:]:
        return None
    ours, theirs = (run[1, :, 1] for run in runs)
    size = float(ours.norm())
    return float((ours - theirs).norm()) / size if size > 0 else None


def told_of_micro_batches(
    judgement: Judgement,
    apart: Mapping[str, tuple[Any, Any]],
    share: float | None,
    model: nn.Module,
    data: Data,
) -> Judgement:
    """Return a judgement that tells if a row with other micro-batches trains another step. The verdict stays.

    apart: the differing axes -> the values of the row and of the base row. share: see `exact_difference`.
    """
    if share is None or share <= LEAST_SHARE:
        return judgement
    values = ", ".join(f"{axis} {ours} against {theirs}" for axis, (ours, theirs) in apart.items())
    told = (
        f"rows along {', '.join(apart)} train different steps: {values}, first gradient {percent(share)} off"
        f" in exact arithmetic; {_why(model, data)}"
    )
    correctness = replace(judgement.correctness, differs_along=list(apart))
    return replace(judgement, correctness=correctness, warnings=[*judgement.warnings, told])


def _why(model: nn.Module, data: Data) -> str:
    """Return what may make the difference: other samples, or the first layer that mixes samples."""
    if micro_batches_per_draw(data, 1, 2) == 1:
        return "samples differ: a batch has a tensor whose first dimension is not that of the samples"
    mean = "the loss is no mean over samples"
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            return f"{mean}: {name} ({type(module).__name__}) takes the statistics of each micro-batch"
        if mixes_samples(module):
            return f"{mean}: {name} ({type(module).__name__}) draws a mask for each micro-batch"
    return f"{mean}: it compares them, draws random numbers, or is a mean over the tokens of a micro-batch"
