"""A ValueError that names the argument, and not one bit written."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from zbench.engine.adam import AdamTask, Hyper, NativeAdam, Slot, TorchFusedAdam, adam_step_
from zbench.engine.adam.exact_sum import EXACT_WORDS, exact_zero
from zbench.testing.adam import Case, results

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)
BAD_TASKS: list[tuple[str, Callable[[AdamTask], dict[str, Any]]]] = [
    ("grad: expected torch.float32 or", lambda _: {"grad": torch.zeros(64, dtype=torch.float64)}),
    (r"grad: expected shape \[64\]", lambda _: {"grad": torch.zeros(63)}),
    ("grad: expected a contiguous", lambda _: {"grad": torch.zeros(128)[::2]}),
    ("grad: expected a tensor on cpu", lambda _: {"grad": torch.zeros(64, device="meta")}),
    ("step: expected an integer", lambda _: {"step": 0}),
    ("param_out: expected torch.float32 or", lambda _: {"param_out": torch.zeros(64, dtype=torch.int32)}),
    ("hyper.beta1", lambda _: {"hyper": dataclasses.replace(HYPER, beta1=1.0)}),
    ("hyper.lr", lambda _: {"hyper": dataclasses.replace(HYPER, lr=float("nan"))}),
    ("rounding_seed", lambda _: {"rounding_seed": 2**64}),
    ("overlaps", lambda task: {"param_out": task.grad}),
    ("overlaps", lambda task: {"into": Slot(task.slot.exp_avg, torch.zeros(64), torch.zeros(64))}),
    ("overlaps", lambda task: {"slot": dataclasses.replace(task.slot, exp_avg_sq=task.slot.exp_avg)}),
]


@pytest.mark.parametrize(("message", "change"), BAD_TASKS)
@pytest.mark.parametrize("backend", [NativeAdam(), TorchFusedAdam()])
def test_a_bad_task_stops_the_whole_call(
    backend: Any, message: str, change: Callable[[AdamTask], dict[str, Any]]
) -> None:
    """Of the first call, and of one that turns wrong after a good one, whose plan is kept."""
    good, bad = Case(64, 0, HYPER).task(), Case(64, 1, HYPER).task()
    for _ in range(2):
        before = [tensor.clone() for tensor in results(good)]
        with pytest.raises(ValueError, match=r"tasks\[1\]\..*" + message):
            backend.update([good, dataclasses.replace(bad, **change(bad))])
        assert all(torch.equal(a, b) for a, b in zip(results(good), before, strict=True))
        backend.update([good, bad])


def test_overlap_names_both_tensors() -> None:
    task = Case(64, 0, HYPER).task()
    shared = torch.zeros(100)
    slot = Slot(shared[:64], task.slot.exp_avg, task.slot.exp_avg_sq)
    with pytest.raises(ValueError, match=r"grad overlaps tasks\[0\].slot.param"):
        NativeAdam().update([dataclasses.replace(task, slot=slot, grad=shared[36:])])
    with pytest.raises(ValueError, match="overlaps"):
        NativeAdam().update([task, dataclasses.replace(task, grad=torch.zeros(64))])


def test_the_function_uses_its_own_argument_names() -> None:
    def call(**change: Any) -> None:
        tensors = [torch.randn(4, 6), torch.randn(4, 6), torch.zeros(4, 6), torch.zeros(4, 6)]
        hypers = {"step": 1, "lr": 0.1, "betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.0}
        adam_step_(*tensors, **{**hypers, **change})

    call()
    for message, change in (
        ("^step: ", {"step": 0}),
        (r"^betas\[1\]: ", {"betas": (0.9, 1.0)}),
        ("^param_out: ", {"param_out": torch.zeros(24)}),
        ("^grad_scale: ", {"grad_scale": "1"}),
    ):
        with pytest.raises(ValueError, match=message):
            call(**change)


@pytest.mark.parametrize(
    ("grads", "sums", "message"),
    [
        ([torch.zeros(4)], torch.zeros(EXACT_WORDS), "sums: expected torch.int64"),
        ([torch.zeros(4), torch.zeros(4).double()], exact_zero(), r"grads\[1\]: expected torch.float32"),
    ],
)
@pytest.mark.parametrize("backend", [NativeAdam(), TorchFusedAdam()])
def test_what_cannot_be_summed_is_named(
    backend: Any, grads: list[torch.Tensor], sums: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        backend.add_square_sums(grads, sums)
    assert not sums.any()
