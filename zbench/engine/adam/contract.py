"""The Adam contract: what one update reads and writes, and what it refuses before it writes anything.

The update is a pure function of its arguments. There is no step counter and no other state. Calls in any
partition, order or number of subgroups, from any thread, give the same bits as one call, in every backend.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from zbench.engine.adam.exact_sum import EXACT_WORDS

NORM_CHUNK = 256
"""Elements whose squares the norm adds in double. In flat layouts parameters begin at multiples of it."""
GRAD_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOMENT_DTYPES = (torch.float32, torch.bfloat16)
_GIVEN = {"tasks[0].": "", "slot.": "", "hyper.beta1": "betas[0]", "hyper.beta2": "betas[1]", "hyper.": ""}


@dataclass(frozen=True, slots=True)
class Hyper:
    """Scalars of one optimizer group, in double. `decoupled`: AdamW; else decay is added to the gradient."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    bias_correction: bool = True
    decoupled: bool = True


def hyper_of(group: Mapping[str, Any]) -> Hyper:
    """Return the scalars of a group with torch's keys."""
    beta1, beta2 = group["betas"]
    lr = float(group["lr"])
    eps = group["eps"]
    decay = group["weight_decay"]
    return Hyper(lr, beta1, beta2, eps, decay, group["bias_correction"], group["decoupled"])


@dataclass(slots=True)
class Slot:
    """The tensors that one update replaces: 1-D, contiguous, equal length n.

    param [n] float32 (master weights); exp_avg, exp_avg_sq [n] float32 or bfloat16; max_exp_avg_sq [n]
    likewise, present exactly where AMSGrad is on.
    """

    param: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    max_exp_avg_sq: Tensor | None = None


@dataclass(slots=True)
class AdamTask:
    """One run of consecutive elements that share a step and hyperparameters.

    slot: read, and written in place unless `into` is given. grad [n]: float32, bfloat16 or float16.
    step: 1 for the first update. into: where the result goes instead (the other half of a double buffer).
    param_out [n]: receives the new parameter rounded to its dtype (bfloat16, float16 or float32).
    rounding_seed: None rounds bfloat16 moments to nearest even. An integer (0 to 2^64 - 1) rounds them
    stochastically and reproducibly: the random bits are a hash of (seed, step, element index) and of
    nothing else.
    rounding_offset: the element index (in the rounding stream) of this task's first element, so that a
    partition of a tensor draws the same random bits as the whole.

    Arithmetic is float32 throughout: moments are widened, and rounded once when they are stored; the
    parameter is updated from the moments before that rounding. Every NaN that is stored is the quiet one
    with no payload.
    """

    slot: Slot
    grad: Tensor
    step: int
    hyper: Hyper
    into: Slot | None = None
    param_out: Tensor | None = None
    rounding_seed: int | None = None
    rounding_offset: int = 0


class AdamBackend(Protocol):
    """Where the update runs. Implementations: native (CPU), cuda, and torch's fused Adam."""

    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        """Apply Adam to every task; each gradient is multiplied once by float32(grad_scale).

        ValueError names the argument that is wrong (dtype, device, shape, layout, overlap, step or
        hyperparameter); then nothing has been written.
        """

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        """Add the sum of squares of grads[k][256 j : 256 (j+1)], in double, for each k and j.

        sums: an exact sum (`exact_sum.py`), on the gradients' device. The order within a chunk is fixed: lane
        i (0..7) adds elements i, i+8, i+16, ... in turn; then the lanes are added as
        ((0+4)+(2+6))+((1+5)+(3+7)). A non-finite gradient makes the sum non-finite, so the norm doubles as
        the overflow check. Lengths need not be multiples of 256: the last chunk is padded with zeros.
        """


def plain_square_sums(grad: Tensor) -> Tensor:
    """Return the square sums of one gradient's chunks, float64, in plain torch on any device."""
    padded = torch.nn.functional.pad(grad.double(), (0, -grad.numel() % NORM_CHUNK))
    squares = padded.square().view(-1, NORM_CHUNK // 8, 8)
    lane = torch.zeros_like(squares[:, 0])
    for row in squares.unbind(1):
        lane = lane + row
    pair = [lane[:, i] + lane[:, i + 4] for i in range(4)]
    return (pair[0] + pair[2]) + (pair[1] + pair[3])


def as_given(message: str) -> str:
    """Return what is wrong with one task in the words of torch's optimizers."""
    for name, words in _GIVEN.items():
        message = message.replace(name, words)
    return message


def check_tasks(tasks: Sequence[AdamTask], device_type: str) -> None:
    """Raise ValueError unless every task can be updated on such a device; overlap is checked elsewhere."""
    for index, task in enumerate(tasks):
        try:
            _check_task(task, device_type)
        except ValueError as error:
            raise ValueError(f"tasks[{index}].{error}") from None


def check_hyper(hyper: Hyper) -> None:
    """Raise ValueError unless lr, eps, weight_decay are finite and at least 0 and both betas in [0, 1)."""
    for name in ("lr", "eps", "weight_decay"):
        value = getattr(hyper, name)
        if not 0.0 <= value < math.inf:
            raise ValueError(f"hyper.{name}: expected a finite number of at least 0, got {value!r}")
    for name in ("beta1", "beta2"):
        value = getattr(hyper, name)
        if not 0.0 <= value < 1.0:
            raise ValueError(f"hyper.{name}: expected a number in [0, 1), got {value!r}")


def check_grad_scale(grad_scale: float) -> None:
    """Raise ValueError for a grad_scale that is not a number. Zero, infinity and NaN are the caller's
    business.
    """
    if isinstance(grad_scale, bool) or not isinstance(grad_scale, int | float):
        raise ValueError(f"grad_scale: expected a number, got {grad_scale!r}")


def check_norm_tensors(grads: Sequence[Tensor], sums: Tensor, device_type: str) -> None:
    """Raise ValueError unless every gradient is flat, and `sums` has the words of an exact sum."""
    for index, grad in enumerate(grads):
        check_flat(f"grads[{index}]", grad, grad.numel(), GRAD_DTYPES, device_type)
    check_flat("sums", sums, EXACT_WORDS, (torch.int64,), device_type)


def check_flat(
    name: str, tensor: Tensor, numel: int, dtypes: tuple[torch.dtype, ...], device_type: str
) -> None:
    """Raise ValueError unless the tensor is [numel], contiguous, of one of the dtypes, on such a device."""
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {_names(dtypes)}, got {tensor.dtype}")
    if tensor.device.type != device_type:
        raise ValueError(f"{name}: expected a tensor on {device_type}, got one on {tensor.device}")
    if tensor.ndim != 1 or tensor.numel() != numel:
        raise ValueError(f"{name}: expected shape [{numel}], got {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous tensor, got strides {tensor.stride()}; pass .contiguous()"
        )


def _check_task(task: AdamTask, device_type: str) -> None:
    slot = task.slot
    into = task.into
    numel = task.slot.param.numel()
    _check_slot("slot", slot, numel, slot.exp_avg.dtype, device_type)
    if into is not None:
        _check_slot("into", into, numel, slot.exp_avg.dtype, device_type)
        if (into.max_exp_avg_sq is None) != (slot.max_exp_avg_sq is None):
            raise ValueError("into.max_exp_avg_sq: expected it exactly where slot has one")
    check_flat("grad", task.grad, numel, GRAD_DTYPES, device_type)
    if task.param_out is not None:
        check_flat("param_out", task.param_out, numel, GRAD_DTYPES, device_type)
    if isinstance(task.step, bool) or not isinstance(task.step, int) or not 1 <= task.step < 2**63:
        raise ValueError(f"step: expected an integer of at least 1, got {task.step!r}")
    if task.rounding_seed is not None and not 0 <= task.rounding_seed < 2**64:
        raise ValueError(f"rounding_seed: expected 0 to 2^64 - 1, got {task.rounding_seed!r}")
    if not 0 <= task.rounding_offset < 2**63:
        raise ValueError(f"rounding_offset: expected 0 to 2^63 - 1, got {task.rounding_offset!r}")
    check_hyper(task.hyper)


def _check_slot(name: str, slot: Slot, numel: int, moments: torch.dtype, device_type: str) -> None:
    check_flat(f"{name}.param", slot.param, numel, (torch.float32,), device_type)
    if moments not in MOMENT_DTYPES:
        raise ValueError(f"{name}.exp_avg: expected {_names(MOMENT_DTYPES)}, got {moments}")
    check_flat(f"{name}.exp_avg", slot.exp_avg, numel, (moments,), device_type)
    check_flat(f"{name}.exp_avg_sq", slot.exp_avg_sq, numel, (moments,), device_type)
    if slot.max_exp_avg_sq is not None:
        check_flat(f"{name}.max_exp_avg_sq", slot.max_exp_avg_sq, numel, (moments,), device_type)


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype) for dtype in dtypes)
