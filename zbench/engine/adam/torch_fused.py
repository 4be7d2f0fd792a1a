"""TorchFusedAdam: torch's own fused AdamW behind the Adam contract, for CUDA without our kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from zbench.engine.adam.checks import check_grad_scale, check_nonfinite, check_tasks
from zbench.engine.adam.contract import AdamTask
from zbench.engine.adam.plan import build_plan, is_simulated, task_tensors
from zbench.engine.adam.reference import ReferenceAdam


class TorchFusedAdam(ReferenceAdam):
    """One fused call for each task. On the CPU its bits are the contract's (of multiples of 16 elements), but
    for a NaN, which keeps its payload; on a device that is not shown yet.

    What torch's kernel has no form of (moments in bfloat16, no bias correction) is done by ReferenceAdam,
    slowly. Asynchronous on the current stream, as torch's operations are.
    """

    @torch.no_grad()
    def update(
        self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0, nonfinite: Tensor | None = None
    ) -> None:
        """See AdamBackend.update. Fake tensors are checked and left alone."""
        if not tasks:
            return
        device_type = tasks[0].slot.param.device.type
        check_grad_scale(grad_scale)
        check_nonfinite(nonfinite, device_type)
        check_tasks(tasks, device_type)
        if is_simulated(tensor for task in tasks for tensor in task_tensors(task)):
            return
        build_plan(tasks)  # refuses overlapping tensors
        for task in tasks:
            if not _has_fused_form(task):
                super().update([task], grad_scale=grad_scale, nonfinite=nonfinite)
                continue
            _update(task, grad_scale)
            if nonfinite is not None:
                kept = task.param_out if task.param_out is not None else (task.into or task.slot).param
                nonfinite += (~kept.isfinite()).sum()


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
        lr=hyper.lr,
        beta1=hyper.beta1,
        beta2=hyper.beta2,
        weight_decay=hyper.weight_decay,
        eps=hyper.eps,
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )
    if task.param_out is not None:
        task.param_out.copy_(slot.param)
