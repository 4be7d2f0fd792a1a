"""The addresses of an optimizer's tensors: read at each step, checked again only when they have changed."""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from zbench.engine.adam.checks import check_tasks
from zbench.engine.adam.contract import AdamTask, Hyper, Slot
from zbench.engine.adam.plan import build_plan, check_overlap, equal_runs, native_hyper

_DTYPE = attrgetter("dtype")
Entry = tuple[int, Tensor, dict[str, Any]]
"""(index of the group, parameter, its optimizer state)"""


class Pointers:
    """A native plan for entries (group index, parameter, state); ValueError where one cannot be updated."""

    def __init__(self, entries: list[Entry], amsgrads: list[bool], hypers: list[Hyper]) -> None:
        tasks = checked_tasks(entries, amsgrads, hypers)
        self._groups = [group for group, _, _ in entries]
        self._amsgrads = amsgrads
        self._plan = build_plan(tasks)
        self._fixed = _fixed_addresses(entries)
        self._grads = list(map(Tensor.data_ptr, grads_of(entries)))
        self._dtypes = list(map(_DTYPE, grads_of(entries)))

    def still_hold(self, entries: list[Entry], amsgrads: list[bool]) -> bool:
        """Tell whether the plan serves these entries too, after a look at their gradients' new places."""
        if amsgrads != self._amsgrads:
            return False
        if [group for group, _, _ in entries] != self._groups or _fixed_addresses(entries) != self._fixed:
            return False
        tensors = grads_of(entries)
        if not all(map(Tensor.is_contiguous, tensors)) or list(map(_DTYPE, tensors)) != self._dtypes:
            return False
        grads = list(map(Tensor.data_ptr, tensors))
        if grads != self._grads:
            self._plan.set_grads(grads)
            check_overlap(self._plan)
            self._grads = grads
        return True

    def run(self, steps: list[int], hypers: list[Hyper], grad_scale: float) -> None:
        """Update all entries: number k is at steps[k] and has the hyperparameters of its group."""
        for begin, end, (group, step) in equal_runs(zip(self._groups, steps, strict=True)):
            self._plan.set_steps(begin, end, step, native_hyper(hypers[group]))
        self._plan.run(grad_scale=grad_scale, threads=torch.get_num_threads())


def _task(entry: Entry, amsgrad: bool, hyper: Hyper) -> AdamTask:
    _, parameter, state = entry
    assert parameter.grad is not None
    master = state.get("master", parameter)
    greatest = state["max_exp_avg_sq"] if amsgrad else None
    slot = Slot(
        _flat("param", master),
        _flat("exp_avg", state["exp_avg"]),
        _flat("exp_avg_sq", state["exp_avg_sq"]),
        None if greatest is None else _flat("max_exp_avg_sq", greatest),
    )
    out = None if master is parameter else _flat("param", parameter)
    return AdamTask(slot, _flat("grad", parameter.grad), state["step"] + 1, hyper, param_out=out)


def _flat(name: str, tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous dense tensor, got {tensor.layout}, {list(tensor.shape)}"
        )
    return tensor.detach().view(-1)


def checked_tasks(entries: list[Entry], amsgrads: list[bool], hypers: list[Hyper]) -> list[AdamTask]:
    """Return the tasks of the entries; ValueError where one cannot be updated."""
    tasks = [_task(entry, amsgrads[entry[0]], hypers[entry[0]]) for entry in entries]
    for task, (group, parameter, _) in zip(tasks, entries, strict=True):
        try:
            check_tasks([task], "cpu")
        except ValueError as error:
            message = str(error).removeprefix("tasks[0].").removeprefix("slot.")
            raise ValueError(f"group {group}, parameter {list(parameter.shape)}: {message}") from None
    return tasks


def _fixed_addresses(entries: list[Entry]) -> list[int]:
    """Every address of an update but the gradients'."""
    tensors = [parameter for _, parameter, _ in entries]
    tensors += [value for _, _, state in entries for value in state.values() if type(value) is not int]
    return list(map(Tensor.data_ptr, tensors))


def grads_of(entries: list[Entry]) -> list[Tensor]:
    """Return the gradients of the parameters that have one."""
    return [parameter.grad for _, parameter, _ in entries if parameter.grad is not None]
