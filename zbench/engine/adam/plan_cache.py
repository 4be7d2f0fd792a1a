"""The plan of the last call, for calls that update the same memory again: then only addresses are compared.

With 2,000 tasks, checking and building anew costs as much as the update itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor

from zbench import _native
from zbench.engine.adam.checks import check_hyper, check_tasks
from zbench.engine.adam.contract import AdamTask
from zbench.engine.adam.plan import build_plan, equal_runs, native_hyper

_DTYPE, _DEVICE = attrgetter("dtype"), attrgetter("device")


@dataclass(slots=True)
class _Kept:
    """A plan and all that it was built from; no tensor is kept alive."""

    tensors: list[Any]
    layout: list[Any]
    plan: "_native.Plan"


class PlanCache:
    """Lends the plan of tasks on one type of device; each thread that shares the cache gets a plan of its
    own.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._spare: list[_Kept] = []

    @contextmanager
    def borrowed(self, tasks: Sequence[AdamTask], flat: "Flat | None" = None) -> Iterator["_native.Plan"]:
        """Yield the checked plan of the tasks; ValueError as AdamBackend.update. flat: of these tasks."""
        tensors, layout = flat or flatten(tasks)
        try:
            kept = self._spare.pop()
        except IndexError:
            kept = None
        seen = _described(tensors)
        if kept is None or kept.layout != layout or kept.tensors != seen or not _set_steps(kept.plan, tasks):
            check_tasks(tasks, self._device_type)
            kept = _Kept(seen, layout, build_plan(tasks))
        try:
            yield kept.plan
        finally:
            self._spare[:] = [kept]


class Flat(NamedTuple):
    """The tensors of several tasks in a row, and for each task what tells which is which."""

    tensors: list[Tensor]
    layout: list[Any]


def flatten(tasks: Sequence[AdamTask]) -> Flat:
    """Return the tasks' tensors in a row."""
    tensors: list[Tensor] = []
    layout = []
    for task in tasks:
        slot, into, out = task.slot, task.into, task.param_out
        greatest = slot.max_exp_avg_sq
        tensors += (slot.param, slot.exp_avg, slot.exp_avg_sq, task.grad)
        if greatest is not None:
            tensors.append(greatest)
        if out is not None:
            tensors.append(out)
        if into is not None:
            tensors += (into.param, into.exp_avg, into.exp_avg_sq)
            if into.max_exp_avg_sq is not None:
                tensors.append(into.max_exp_avg_sq)
        shape = 0 if into is None else 1 if into.max_exp_avg_sq is None else 2
        layout.append((greatest is None, out is None, shape, task.rounding_seed, task.rounding_offset))
    return Flat(tensors, layout)


def _described(tensors: list[Tensor]) -> list[Any]:
    """Return all that a plan and its checks depend on."""
    return [
        list(map(Tensor.data_ptr, tensors)),
        list(map(Tensor.size, tensors)),
        list(map(_DTYPE, tensors)),
        list(map(_DEVICE, tensors)),
        list(map(Tensor.is_contiguous, tensors)),
    ]


def _set_steps(plan: "_native.Plan", tasks: Sequence[AdamTask]) -> bool:
    """Give the plan the tasks' steps and hyperparameters; False where one of them is not valid."""
    rows = ((type(task.step), task.step, task.hyper) for task in tasks)  # the type: True equals 1
    for begin, end, (kind, step, hyper) in equal_runs(rows):
        try:
            check_hyper(hyper)
        except ValueError:
            return False
        if kind is not int or not 1 <= step < 2**63:
            return False
        plan.set_steps(begin, end, step, native_hyper(hyper))
    return True
