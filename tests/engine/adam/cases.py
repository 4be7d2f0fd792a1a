"""Random updates as data: built twice from one seed, they are the same bits."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.engine.plain import bits
from zbench.engine.adam import AdamTask, Hyper, Slot

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
HYPERS = (
    Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01),
    Hyper(0.1, 0.3, 0.5, 0.0, 0.3, bias_correction=False, decoupled=False),
    Hyper(1e-2, 0.0, 0.95, 1e-3, 0.0, decoupled=False),
)


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
