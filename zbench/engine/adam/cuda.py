"""The update on a CUDA device, or on one and the CPU.

CudaAdam makes one launch for each group of dtypes, with the CPU kernels' bits; TorchFusedAdam is torch's own
fused AdamW behind the contract; MixedAdam updates each task where it is.
"""

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.contract import (
    AdamBackend,
    AdamTask,
    check_grad_scale,
    check_norm_tensors,
    check_tasks,
    plain_square_sums,
)
from zbench.engine.adam.device_kernels import driver, kernel, launch
from zbench.engine.adam.exact_sum import add_exactly
from zbench.engine.adam.native import (
    DTYPE_CODES,
    Flat,
    PlanCache,
    build_plan,
    call_native,
    flatten,
    norm_rows,
    steps_of,
)


@functools.cache
def cuda_unavailable_reason() -> str | None:
    """Return why the CUDA kernels cannot be used here, or None if they can: one has been compiled."""
    if torch.version.hip:
        return "zbench's kernels are CUDA's, and this torch is built for ROCm"
    if not torch.version.cuda:
        return "this torch is built without CUDA"
    try:
        driver()
        kernel("square_sums", "square_sums", torch.device("cuda"), ZBENCH_GRAD=DTYPE_CODES[torch.float32])
    except RuntimeError as error:
        return str(error)
    return None


def cuda_adam() -> AdamBackend:
    """Return what updates tensors on a CUDA device here: the CUDA kernels, or else torch's own fused Adam."""
    return CudaAdam() if cuda_unavailable_reason() is None else TorchFusedAdam()


class CudaAdam:
    """The CUDA kernels behind the AdamBackend interface. Tensors of a call live on one CUDA device.

    Calls are asynchronous on torch's current stream of that device. RuntimeError where the kernels cannot be
    used (see `cuda_unavailable_reason`).
    """

    def __init__(self) -> None:
        if reason := cuda_unavailable_reason():
            raise RuntimeError(reason)
        self._plans = PlanCache("cuda")

    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        """See AdamBackend.update. Fake tensors are checked and left alone."""
        check_grad_scale(grad_scale)
        flat = flatten(tasks)
        device = _one_device(flat.tensors)
        if device is not None:
            run = partial(self._update, tasks, flat, grad_scale, device)
            call_native(run, flat.tensors, partial(check_tasks, tasks, "cuda"))

    def _update(
        self,
        tasks: Sequence[AdamTask],
        flat: Flat,
        grad_scale: float,
        device: torch.device,
    ) -> None:
        plan = self._plans.plan(flat, lambda: tasks, steps_of(tasks))
        for dtypes, blocks, count, rows in plan.device_rows(grad_scale=grad_scale):
            table = _on_device(rows, device)
            arguments = ctypes.c_void_p(table.data_ptr()), ctypes.c_int(count)
            macros = dict(zip(("ZBENCH_GRAD", "ZBENCH_MOMENT", "ZBENCH_OUT"), dtypes, strict=True))
            launch("update", device, blocks, _native.DEVICE_BLOCK_THREADS, *arguments, **macros)

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        """See AdamBackend.add_square_sums. Fake tensors are checked and left alone."""
        check_norm_tensors(grads, sums, "cuda")
        device = _one_device([*grads, sums])
        if device is not None:
            call_native(partial(self._square_sums, grads, sums, device), [*grads, sums])

    def _square_sums(self, grads: Sequence[Tensor], sums: Tensor, device: torch.device) -> None:
        words = ctypes.c_void_p(sums.data_ptr())
        for (dtype,), blocks, count, rows in _native.device_norm_rows(grads=norm_rows(grads)):
            table = _on_device(rows, device)
            arguments = ctypes.c_void_p(table.data_ptr()), ctypes.c_int(count), words
            threads = _native.DEVICE_NORM_THREADS
            launch("square_sums", device, blocks, threads, *arguments, ZBENCH_GRAD=dtype)


def _one_device(tensors: Sequence[Tensor]) -> torch.device | None:
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"tasks: expected all tensors of one call on one device, got {names}")
    return devices.pop() if devices else None


def _on_device(rows: bytes, device: torch.device) -> Tensor:
    """Copy table rows in stream order; pinned memory lets the host go on."""
    host = torch.frombuffer(bytearray(rows), dtype=torch.uint8).pin_memory()
    return host.to(device, non_blocking=True)


class TorchFusedAdam:
    """One fused call for each task. On the CPU its bits are the contract's (of multiples of 16 elements), but
    for a NaN, which keeps its payload; on a device that is not shown yet.

    It rounds moments to nearest only. Asynchronous on the current stream, as torch's operations are.
    """

    @torch.no_grad()
    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        """See AdamBackend.update."""
        if not tasks:
            return
        device_type = tasks[0].slot.param.device.type
        check_grad_scale(grad_scale)
        check_tasks(tasks, device_type)
        call_native(partial(build_plan, tasks), flatten(tasks).tensors)  # refuses overlapping tensors
        for task in tasks:
            self.update_task(task, grad_scale)

    def update_task(self, task: AdamTask, grad_scale: float) -> None:
        """Update one task that has been checked."""
        assert task.rounding_seed is None, "torch's kernel rounds to nearest"
        hyper, slot = task.hyper, task.slot
        if task.into is not None:
            for name in ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
                if (source := getattr(slot, name)) is not None:
                    getattr(task.into, name).copy_(source)
            slot = task.into
        moments = [m for m in (slot.exp_avg, slot.exp_avg_sq, slot.max_exp_avg_sq) if m is not None]
        wide = [moment.float() for moment in moments]  # float32 ones themselves
        single = torch.tensor(grad_scale, dtype=torch.float64, device="cpu").float().item()
        step = float(task.step) if hyper.bias_correction else math.inf  # 1 - beta ** inf corrects nothing
        fused = torch._fused_adamw_ if hyper.decoupled else torch._fused_adam_
        fused(
            [slot.param],
            [task.grad.float() * single],
            [wide[0]],
            [wide[1]],
            wide[2:],
            [torch.full((), step, device=slot.param.device)],
            amsgrad=len(wide) > 2,
            **{name: getattr(hyper, name) for name in ("lr", "beta1", "beta2", "weight_decay", "eps")},
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )
        for moment, result in zip(moments, wide, strict=True):
            moment.copy_(result)
        if task.param_out is not None:
            task.param_out.copy_(slot.param)

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        """See AdamBackend.add_square_sums."""
        check_norm_tensors(grads, sums, sums.device.type)
        for grad in grads:
            add_exactly(sums, plain_square_sums(grad))


class MixedAdam:
    """Several backends behind the AdamBackend interface: each task goes to that of its device type."""

    def __init__(self, backends: Mapping[str, AdamBackend]) -> None:
        self._backends = backends

    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        """See AdamBackend.update; the accelerator's tasks are launched first, and run beside the CPU's."""
        for kind, backend in self._backends.items():
            if there := [task for task in tasks if task.grad.device.type == kind]:
                backend.update(there, grad_scale=grad_scale)

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        """See AdamBackend.add_square_sums."""
        self._backends[sums.device.type].add_square_sums(grads, sums)
