"""Tasks as the native code takes them: a checked list of addresses, built once and run as often as needed."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.contract import AdamTask, Hyper, Slot

DTYPE_CODES: dict[torch.dtype | None, int] = {None: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_NO_SLOT = (0, 0, 0, 0)
_T = TypeVar("_T")


def task_tensors(task: AdamTask) -> Iterable[Tensor]:
    """Yield every tensor that the task reads or writes."""
    slots = (task.slot,) if task.into is None else (task.slot, task.into)
    for slot in slots:
        yield from (slot.param, slot.exp_avg, slot.exp_avg_sq)
        if slot.max_exp_avg_sq is not None:
            yield slot.max_exp_avg_sq
    yield task.grad
    if task.param_out is not None:
        yield task.param_out


def native_hyper(hyper: Hyper) -> "_native.Hyper":
    """Return the same hyperparameters as the native code takes them."""
    return _native.Hyper(
        lr=hyper.lr,
        beta1=hyper.beta1,
        beta2=hyper.beta2,
        eps=hyper.eps,
        weight_decay=hyper.weight_decay,
        bias_correction=hyper.bias_correction,
        decoupled=hyper.decoupled,
    )


def equal_runs(values: Iterable[_T]) -> Iterator[tuple[int, int, _T]]:
    """Yield (begin, end, value) for each run of equal consecutive values."""
    begin = 0
    for value, run in itertools.groupby(values):
        end = begin + sum(1 for _ in run)
        yield begin, end, value
        begin = end


def build_plan(tasks: Sequence[AdamTask]) -> "_native.Plan":
    """Return the native plan of tasks that passed `check_tasks`; ValueError where written tensors overlap."""
    plan = _native.Plan()
    hyper, native = None, None
    for index, task in enumerate(tasks):
        plan.add(
            slot=_addresses(task.slot),
            into=_NO_SLOT if task.into is None else _addresses(task.into),
            grad=task.grad.data_ptr(),
            param_out=0 if task.param_out is None else task.param_out.data_ptr(),
            numel=task.grad.numel(),
            dtypes=(
                DTYPE_CODES[task.grad.dtype],
                DTYPE_CODES[task.slot.exp_avg.dtype],
                DTYPE_CODES[None if task.param_out is None else task.param_out.dtype],
            ),
            rounding_seed=task.rounding_seed,
            rounding_offset=task.rounding_offset,
        )
        if native is None or task.hyper is not hyper:
            hyper, native = task.hyper, native_hyper(task.hyper)
        plan.set_steps(index, index + 1, task.step, native)
    check_overlap(plan)
    return plan


def check_overlap(plan: "_native.Plan") -> None:
    """Raise ValueError if two tensors of the plan share bytes and one of them is written."""
    found = plan.find_overlap()
    if found is not None:
        task, name, other_task, other_name = found
        raise ValueError(
            f"tasks[{other_task}].{_place(other_name)} overlaps tasks[{task}].{_place(name)}: "
            "expected every written tensor to have memory of its own"
        )


def _place(name: str) -> str:
    return name if name in ("grad", "param_out") or name.startswith("into.") else f"slot.{name}"


def _addresses(slot: Slot) -> tuple[int, int, int, int]:
    greatest = 0 if slot.max_exp_avg_sq is None else slot.max_exp_avg_sq.data_ptr()
    return (slot.param.data_ptr(), slot.exp_avg.data_ptr(), slot.exp_avg_sq.data_ptr(), greatest)
