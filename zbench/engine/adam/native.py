"""Native code: the operator through which it is called, tasks as it takes them, and NativeAdam on the CPU.

Native code takes addresses, and a fake tensor has none. So every native call goes through torch's dispatcher
as one operator over the tensors that it reads and writes. Its kernel makes the call; its fake kernel makes
the checks alone, since native code allocates no tensors.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.contract import (
    AdamTask,
    Hyper,
    Slot,
    check_grad_scale,
    check_hyper,
    check_norm_tensors,
    check_tasks,
)

NAMESPACE = "zbench"
DTYPE_CODES: dict[torch.dtype | None, int] = {None: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_NO_SLOT = (0, 0, 0, 0)
_MOST_PLANS = 1 << 14
_DTYPE, _DEVICE = attrgetter("dtype"), attrgetter("device")
_T = TypeVar("_T")


_calls: dict[int, tuple[Callable[[], object], Callable[[], object]]] = {}
_numbers = itertools.count()


def call_native(
    call: Callable[[], object], tensors: Sequence[Tensor], otherwise: Callable[[], object] = lambda: None
) -> None:
    """Make `call`, which takes the addresses of `tensors`; `otherwise` where they have no memory."""
    if not tensors:
        call()
        return
    number = next(_numbers)
    _calls[number] = call, otherwise
    try:
        native_call(tensors, number)
    finally:
        del _calls[number]


def _call(tensors: Sequence[Tensor], number: int) -> None:
    _calls[number][0]()


def call_without_memory(tensors: Sequence[Tensor], number: int) -> None:
    """Do what a native call does where its tensors have no memory: the operator's fake kernel."""
    _calls[number][1]()


_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("native_call(Tensor(a!)[] tensors, int number) -> ()")  # type: ignore[no-untyped-call]
_library.impl("native_call", _call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(f"{NAMESPACE}::native_call", call_without_memory, lib=_library)
native_call = torch.ops.zbench.native_call.default
"""The operator: (tensors, number of the call)."""


class Flat(NamedTuple):
    """The tensors of several tasks in a row, the gradients first, and a key of all else that a native plan
    depends on.
    """

    tensors: list[Tensor]
    grads: list[Tensor]
    key: list[Any]


def flatten(tasks: Sequence[AdamTask]) -> Flat:
    """Return every tensor that the tasks read or write, in a row."""
    grads = [task.grad for task in tasks]
    tensors = grads[:]
    key = []
    for task in tasks:
        slot, into, out = task.slot, task.into, task.param_out
        greatest = slot.max_exp_avg_sq
        tensors += (slot.param, slot.exp_avg, slot.exp_avg_sq)
        if greatest is not None:
            tensors.append(greatest)
        if out is not None:
            tensors.append(out)
        if into is not None:
            tensors += (into.param, into.exp_avg, into.exp_avg_sq)
            if into.max_exp_avg_sq is not None:
                tensors.append(into.max_exp_avg_sq)
        moments = 0 if into is None else 1 if into.max_exp_avg_sq is None else 2
        key.append((greatest is None, out is None, moments, task.rounding_seed, task.rounding_offset))
    return Flat(tensors, grads, key)


def build_plan(tasks: Sequence[AdamTask]) -> "_native.Plan":
    """Return the native plan of tasks that passed `check_tasks`; ValueError where written tensors overlap."""
    plan = _native.Plan()
    for task in tasks:
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
    for begin, end, (step, hyper) in _equal_runs(steps_of(tasks)):
        plan.set_steps(begin, end, step, _native_hyper(hyper))
    _check_overlap(plan)
    return plan


def _check_overlap(plan: "_native.Plan") -> None:
    overlap = plan.find_overlap()
    if overlap is not None:
        first_task, first, second_task, second = overlap
        raise ValueError(
            f"tasks[{second_task}].{_argument(second)} overlaps tasks[{first_task}].{_argument(first)}: "
            "expected every written tensor to have memory of its own"
        )


@dataclass(slots=True)
class _Kept:
    """A plan, what it depends on but for the addresses of gradients, and these."""

    plan: "_native.Plan"
    description: list[Any]
    grads: list[int]


class PlanCache:
    """Checked native plans on one type of device, one for each subgroup, which its first master weights name.

    Where a subgroup's tensors are where they were, but for its gradients, only what is seen of them is
    compared. With 2,000 tasks, checking and building anew costs as much as the update. No tensor is kept
    alive. Each thread has its own plans.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._kept: dict[tuple[int, int], _Kept] = {}

    def plan(
        self,
        flat: Flat,
        tasks: Callable[[], Sequence[AdamTask]],
        steps: Iterable[tuple[int, Hyper]],
        squares: Tensor | None = None,
    ) -> "_native.Plan":
        """Return the plan of tasks on the tensors of `flat`, with the step and hyperparameters of each.

        tasks: called where there is no such plan; ValueError as AdamBackend.update. squares: the exact sum
        to which an update adds the square sums of its gradients, if it is to.
        """
        tensors, grads, key = flat
        addresses = list(map(Tensor.data_ptr, tensors))
        grad_addresses, others = addresses[: len(grads)], addresses[len(grads) :]
        description = [
            others,
            list(map(Tensor.size, tensors)),
            list(map(_DTYPE, tensors)),
            list(map(_DEVICE, grads)),  # memory at an address that is compared stays on its device
            list(map(Tensor.is_contiguous, tensors)),
            key,
            0 if squares is None else squares.data_ptr(),
        ]
        subgroup = get_ident(), others[0] if others else 0
        entry = self._kept.pop(subgroup, None)  # a plan that is refused is not kept
        if entry is None or entry.description != description or not _set_steps(entry.plan, steps):
            checked = tasks()
            check_tasks(checked, self._device_type)
            entry = _Kept(build_plan(checked), description, grad_addresses)
            if squares is not None:
                entry.plan.set_squares(squares.data_ptr())
        elif entry.grads != grad_addresses:
            entry.plan.set_grads(grad_addresses)
            _check_overlap(entry.plan)
            entry.grads = grad_addresses
        self._kept[subgroup] = entry
        if len(self._kept) > _MOST_PLANS:  # of tensors that are new each time
            del self._kept[next(iter(self._kept))]
        return entry.plan


class NativeAdam:
    """The C++ kernels behind the AdamBackend interface. Tensors live on the CPU; calls release the GIL.

    threads: how many threads share one call; None uses torch.get_num_threads() at each call. The bits do
    not depend on it, nor on the instruction set (the best one here; the environment variable ZBENCH_ISA
    names another).
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads: expected at least 1, got {threads}")
        self._threads = threads
        self._plans = PlanCache("cpu")

    @property
    def threads(self) -> int:
        """Threads that the next call may use."""
        return torch.get_num_threads() if self._threads is None else self._threads

    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        """See AdamBackend.update. Fake tensors are checked and left alone: the update allocates nothing."""
        check_grad_scale(grad_scale)
        flat = flatten(tasks)

        def run() -> None:
            plan = self._plans.plan(flat, lambda: tasks, steps_of(tasks))
            plan.run(grad_scale=grad_scale, threads=self.threads)

        call_native(run, flat.tensors, partial(check_tasks, tasks, "cpu"))

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        """See AdamBackend.add_square_sums. Fake tensors are checked and left alone."""
        check_norm_tensors(grads, sums, "cpu")

        def run() -> None:
            _native.square_sums(grads=norm_rows(grads), sums=sums.data_ptr(), threads=self.threads)

        call_native(run, [*grads, sums])


def norm_rows(grads: Sequence[Tensor]) -> list[tuple[int, int, int]]:
    """Return gradients as the native code takes them."""
    return [(grad.data_ptr(), grad.numel(), DTYPE_CODES[grad.dtype]) for grad in grads]


def steps_of(tasks: Sequence[AdamTask]) -> Iterator[tuple[int, Hyper]]:
    """Yield each task's step and hyperparameters."""
    return ((task.step, task.hyper) for task in tasks)


def _set_steps(plan: "_native.Plan", steps: Iterable[tuple[int, Hyper]]) -> bool:
    """Give the plan its tasks' steps and hyperparameters; False where one of them is not valid."""
    rows = ((type(step), step, hyper) for step, hyper in steps)  # the type: True equals 1
    for begin, end, (kind, step, hyper) in _equal_runs(rows):
        try:
            check_hyper(hyper)
        except ValueError:
            return False
        if kind is not int or not 1 <= step < 2**63:
            return False
        plan.set_steps(begin, end, step, _native_hyper(hyper))
    return True


def _equal_runs(values: Iterable[_T]) -> Iterator[tuple[int, int, _T]]:
    """Yield (begin, end, value) for each run of equal consecutive values."""
    begin = 0
    for value, run in itertools.groupby(values):
        end = begin + len(list(run))
        yield begin, end, value
        begin = end


def _native_hyper(hyper: Hyper) -> "_native.Hyper":
    return _native.Hyper(
        lr=hyper.lr,
        beta1=hyper.beta1,
        beta2=hyper.beta2,
        eps=hyper.eps,
        weight_decay=hyper.weight_decay,
        bias_correction=hyper.bias_correction,
        decoupled=hyper.decoupled,
    )


def _addresses(slot: Slot) -> tuple[int, int, int, int]:
    greatest = 0 if slot.max_exp_avg_sq is None else slot.max_exp_avg_sq.data_ptr()
    return (slot.param.data_ptr(), slot.exp_avg.data_ptr(), slot.exp_avg_sq.data_ptr(), greatest)


def _argument(name: str) -> str:
    """Return a tensor of a native plan by its name in a task."""
    return name if name in ("grad", "param_out") or name.startswith("into.") else f"slot.{name}"
