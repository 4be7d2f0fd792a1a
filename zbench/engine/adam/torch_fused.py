"""TorchFusedAdam: torch's own fused AdamW behind the Adam contract, for CUDA without our kernels."""

import torch

from zbench.engine.adam.contract import AdamTask
from zbench.engine.adam.reference import ReferenceAdam


class TorchFusedAdam(ReferenceAdam):
    """One fused call for each task. On the CPU its bits are the contract's (of multiples of 16 elements), but
    for a NaN, which keeps its payload; on a device that is not shown yet.

    What torch's kernel has no form of (moments in bfloat16, no bias correction) is done by ReferenceAdam,
    slowly. Asynchronous on the current stream, as torch's operations are.
    """

    def _update_task(self, task: AdamTask, grad_scale: float) -> None:
        if _has_fused_form(task):
            _update(task, grad_scale)
        else:
            super()._update_task(task, grad_scale)


def _has_fused_form(task: AdamTask) -> bool:
    return task.hyper.bias_correction and task.slot.exp_avg.dtype is torch.float32


def _update(task: AdamTask, grad_scale: float) -> None:
    hyper, slot = task.hyper, task.slot
    if task.into is not None:
        for name in ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            if (source := getattr(slot, name)) is not None:
                getattr(task.into, name).copy_(source)
        slot = task.into
    single = torch.tensor(grad_scale, dtype=torch.float64).float().item()
    fused = torch._fused_adamw_ if hyper.decoupled else torch._fused_adam_
    fused(
        [slot.param],
        [task.grad.float() * single],
        [slot.exp_avg],
        [slot.exp_avg_sq],
        [] if slot.max_exp_avg_sq is None else [slot.max_exp_avg_sq],
        [torch.full((), float(task.step), device=slot.param.device)],
        amsgrad=slot.max_exp_avg_sq is not None,
        **{name: getattr(hyper, name) for name in ("lr", "beta1", "beta2", "weight_decay", "eps")},
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )
    if task.param_out is not None:
        task.param_out.copy_(slot.param)
