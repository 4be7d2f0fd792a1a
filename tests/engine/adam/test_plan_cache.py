"""A plan kept from the last call: whatever changed since is noticed, and what is wrong is still refused."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from zbench.engine.adam import AdamTask, Hyper, NativeAdam, Slot
from zbench.testing.adam import Case, results

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)
OTHER = Hyper(0.1, 0.5, 0.9, 1e-3, 0.0, False, False)


def tasks() -> list[AdamTask]:
    return [Case(300 + i, i, HYPER).task() for i in range(3)]


def shorter(task: AdamTask) -> dict[str, Any]:
    slot = Slot(task.slot.param[:64], task.slot.exp_avg[:64], task.slot.exp_avg_sq[:64])
    return {"slot": slot, "grad": task.grad[:64]}


def with_maximum(task: AdamTask) -> dict[str, Any]:
    return {"slot": dataclasses.replace(task.slot, max_exp_avg_sq=torch.full_like(task.slot.param, 0.5))}


CHANGES: dict[str, Callable[[AdamTask], dict[str, Any]]] = {
    "nothing": lambda task: {},
    "step": lambda task: {"step": 7},
    "hyper": lambda task: {"hyper": OTHER},
    "gradient elsewhere": lambda task: {"grad": task.grad * 0.5},
    "maximum": with_maximum,
    "other half": lambda task: {"into": Case(task.grad.numel(), 9, HYPER).task().slot},
    "low precision out": lambda task: {"param_out": task.slot.param.bfloat16()},
    "shorter": shorter,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_used_backend_does_what_a_fresh_one_does(change: str) -> None:
    used_tasks, fresh = tasks(), tasks()
    used = NativeAdam(1)
    for backend, mine in ((used, used_tasks), (NativeAdam(1), fresh)):
        backend.update(mine)
        mine[1] = dataclasses.replace(mine[1], **CHANGES[change](mine[1]))
    used.update(used_tasks)
    NativeAdam(1).update(fresh)
    for ours, theirs in zip(used_tasks, fresh, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results(ours), results(theirs), strict=True))


def test_a_gradient_is_refused_while_it_overlaps() -> None:
    backend = NativeAdam(1)
    ours = tasks()
    theirs = tasks()
    backend.update(ours)
    grad = ours[0].grad
    ours[0].grad = ours[1].slot.param[:300]
    for _ in range(2):
        with pytest.raises(ValueError, match="overlaps"):
            backend.update(ours)
    ours[0].grad = grad
    backend.update(ours)
    for _ in range(2):
        NativeAdam(1).update(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, results(a), results(b)))


def test_threads_share_a_backend() -> None:
    """Each thread's steps are its own, though all use one backend at once."""
    backend = NativeAdam(1)
    alone, together = [[Case(5000, i, HYPER).task() for i in range(4)] for _ in range(2)]

    def run(task: AdamTask) -> None:
        for step in range(1, 200):
            task.step = step
            backend.update([task])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, together))
    for task in alone:
        run(task)
    for ours, theirs in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results(ours), results(theirs), strict=True))
