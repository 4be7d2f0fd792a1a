"""The suite of Adam backends: random updates as data, and the native backend's bits for each."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from zbench.engine.adam import AdamBackend, AdamTask, Hyper, NativeAdam, Slot
from zbench.engine.adam.contract import plain_square_sums
from zbench.engine.adam.exact_sum import add_exactly, exact_zero, rounded

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
HYPERS = (
    Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01),
    Hyper(0.1, 0.3, 0.5, 0.0, 0.3, bias_correction=False, decoupled=False),
    Hyper(1e-2, 0.0, 0.95, 1e-3, 0.0, decoupled=False),
)


def bits(tensor: Tensor) -> Tensor:
    """Return the tensor's bits as integers, so that NaN equals NaN and 0 is not -0."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(whole)


@dataclass(frozen=True)
class Case:
    """What shapes one random task."""

    numel: int
    seed: int
    hyper: Hyper
    step: int = 1
    grad_dtype: torch.dtype = torch.float32
    moment_dtype: torch.dtype = torch.float32
    out_dtype: torch.dtype | None = None
    amsgrad: bool = False
    buffered: bool = False
    rounding_seed: int | None = None
    rounding_offset: int = 0
    shift: int = 0
    device: str = "cpu"

    def task(self) -> AdamTask:
        """Build the task; `shift` elements of padding before each tensor spoil its alignment."""
        generator = torch.Generator().manual_seed(self.seed)

        def tensor(dtype: torch.dtype, *, positive: bool = False) -> Tensor:
            values = torch.randn(self.numel + self.shift, generator=generator) * 0.1
            values = values.square() if positive else values
            _sprinkle(values, generator)
            return (values.abs() if positive else values).to(dtype).to(self.device)[self.shift :]

        def slot() -> Slot:
            greatest = tensor(self.moment_dtype, positive=True) if self.amsgrad else None
            exp_avg, exp_avg_sq = tensor(self.moment_dtype), tensor(self.moment_dtype, positive=True)
            return Slot(tensor(torch.float32), exp_avg, exp_avg_sq, greatest)

        return AdamTask(
            slot(),
            tensor(self.grad_dtype),
            self.step,
            self.hyper,
            into=slot() if self.buffered else None,
            param_out=None if self.out_dtype is None else tensor(self.out_dtype),
            rounding_seed=self.rounding_seed,
            rounding_offset=self.rounding_offset,
        )


def assorted(
    grads: torch.dtype, moments: torch.dtype, sizes: Sequence[int], shifts: Sequence[int] = (0,)
) -> list[Case]:
    """Return cases in place and not, with and without AMSGrad and stochastic rounding."""
    return [
        Case(
            numel,
            seed,
            HYPERS[seed % 3],
            step=1 + seed,
            grad_dtype=grads,
            moment_dtype=moments,
            out_dtype=(None, *FLOATS)[seed % 4],
            amsgrad=seed % 2 == 0,
            buffered=seed % 3 == 0,
            rounding_seed=rounding,
            rounding_offset=2**32 - 300 if seed % 5 == 0 else 7,
            shift=shift,
        )
        for seed, (numel, shift, rounding) in enumerate(itertools.product(sizes, shifts, (None, 9)))
    ]


def _sprinkle(values: Tensor, generator: torch.Generator) -> None:
    """Put denormal, zero, huge, infinite and NaN values at random places of long enough tensors."""
    if values.numel() >= 16:
        odd = torch.tensor([1e-41, -0.0, 3e38, torch.inf, -torch.inf, torch.nan])
        places = torch.randint(values.numel(), (odd.numel(),), generator=generator)
        values[places] = odd


def written(task: AdamTask) -> list[Tensor]:
    """Return everything that the task writes."""
    slot = task.into or task.slot
    tensors = (slot.param, slot.exp_avg, slot.exp_avg_sq, slot.max_exp_avg_sq, task.param_out)
    return [tensor for tensor in tensors if tensor is not None]


def results(task: AdamTask) -> list[Tensor]:
    """Return the bits of everything that the task writes."""
    return [bits(tensor) for tensor in written(task)]


def part(task: AdamTask, begin: int, end: int) -> AdamTask:
    """Return the task of elements [begin, end), on the same memory."""

    def cut(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[begin:end]

    def cut_slot(slot: Slot) -> Slot:
        return Slot(
            slot.param[begin:end],
            slot.exp_avg[begin:end],
            slot.exp_avg_sq[begin:end],
            cut(slot.max_exp_avg_sq),
        )

    return replace(
        task,
        slot=cut_slot(task.slot),
        grad=task.grad[begin:end],
        into=None if task.into is None else cut_slot(task.into),
        param_out=cut(task.param_out),
        rounding_offset=task.rounding_offset + begin,
    )


class AdamBackendSuite:
    """Conformance tests of an `AdamBackend`: the bits of the native one, whole or not at all.

    device: where it computes.
    """

    device: ClassVar[str] = "cpu"

    def backend(self) -> AdamBackend:
        """Return the backend."""
        raise NotImplementedError

    def cases(self, grads: torch.dtype, moments: torch.dtype) -> list[Case]:
        """Return updates around a vector's and a block's length, aligned and not."""
        return assorted(grads, moments, (1, 255, 4096, 10_003), shifts=(0, 3))

    @pytest.mark.parametrize("moments", FLOATS[:2])
    @pytest.mark.parametrize("grads", FLOATS)
    def test_one_call_leaves_the_bits_of_the_native_backend(
        self, grads: torch.dtype, moments: torch.dtype
    ) -> None:
        cases = self.cases(grads, moments)
        expected = [case.task() for case in cases]
        found = [replace(case, device=self.device).task() for case in cases]
        NativeAdam().update(expected, grad_scale=0.37)
        self.backend().update(found, grad_scale=0.37)
        for case, mine, theirs in zip(cases, found, expected, strict=True):
            left, right = [value.cpu() for value in results(mine)], results(theirs)
            assert all(map(torch.equal, left, right)), case

    def test_subgroups_in_any_order_leave_the_bits_of_one_call(self) -> None:
        for case in self.cases(torch.bfloat16, torch.float32):
            whole, cut = (replace(case, device=self.device).task() for _ in range(2))
            self.backend().update([whole], grad_scale=0.37)
            middle = case.numel // 2
            backend = self.backend()
            for begin, end in ((middle, case.numel), (0, middle)):
                backend.update([part(cut, begin, end)], grad_scale=0.37)
            assert all(map(torch.equal, results(cut), results(whole))), case

    @pytest.mark.parametrize("argument", ["grad", "step", "hyper", "param_out"])
    def test_a_wrong_task_stops_the_whole_call_and_is_named(self, argument: str) -> None:
        good, bad = (Case(64, seed, HYPERS[0], device=self.device).task() for seed in (0, 1))
        wrong: dict[str, Any] = {
            "grad": torch.zeros(63, device=self.device),
            "step": 0,
            "hyper": replace(HYPERS[0], beta1=1.0),
            "param_out": bad.grad,
        }
        before = [tensor.clone() for tensor in results(good)]
        with pytest.raises(ValueError, match=rf"tasks\[1\].*({argument}|overlaps)"):
            self.backend().update([good, replace(bad, **{argument: wrong[argument]})])
        assert all(map(torch.equal, results(good), before)), "nothing has been written"

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_square_sums_are_added_exactly(self, dtype: torch.dtype) -> None:
        grads = [Case(n, n, HYPERS[0], grad_dtype=dtype).task().grad for n in (1, 256, 4097, 10_003)]
        for each in (grads, [grad.nan_to_num(1.0, 2.0, 3.0) for grad in grads]):
            sums, expected = exact_zero(self.device), exact_zero()
            self.backend().add_square_sums([grad.to(self.device) for grad in each], sums)
            for grad in each:
                add_exactly(expected, plain_square_sums(grad))
            found, total = rounded(sums.tolist()), rounded(expected.tolist())
            assert found == total or (math.isnan(found) and math.isnan(total))
