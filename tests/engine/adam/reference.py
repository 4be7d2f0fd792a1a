"""ReferenceAdam: the contract in plain torch operations, on any device, to compare the kernels with.

Fused multiply-adds and square roots are taken in float64 and rounded so that the float32 result is the
correctly rounded one, which torch's own float32 operations do not promise.
"""

import math

import torch
from torch import Tensor

from zbench.engine.adam import AdamTask, Hyper, TorchFusedAdam

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def fma(a: Tensor | float, b: Tensor, c: Tensor) -> Tensor:
    """Return the float32 nearest to a * b + c, elementwise; operands hold float32 values.

    The product is exact in float64. The sum is rounded to odd there (S. Boldo and G. Melquiond, Emulation
    of FMA and correctly rounded sums, 2008), so that rounding it again, to float32, rounds correctly.
    """
    product, addend = torch.as_tensor(a, device=c.device).double() * b.double(), c.double()
    total = product + addend
    addend_part = total - product
    error = (product - (total - addend_part)) + (addend - addend_part)
    even = (total.view(torch.int64) & 1) == 0
    toward = torch.nextafter(total, torch.copysign(torch.full_like(total, math.inf), error))
    inexact = total.isfinite() & (error != 0)
    return torch.where(inexact & even, toward, total).float()


def adam_elements(
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    greatest: Tensor | None,
    grad: Tensor,
    step: int,
    hyper: Hyper,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return new (param, exp_avg, exp_avg_sq, max_exp_avg_sq), float32, from a scaled gradient (float32)."""

    def single(value: float) -> float:
        return torch.tensor(value, dtype=torch.float64).float().item()

    correction1 = 1.0 - math.pow(hyper.beta1, step) if hyper.bias_correction else 1.0
    correction2 = 1.0 - math.pow(hyper.beta2, step) if hyper.bias_correction else 1.0
    if hyper.decoupled:
        param = param * single(1.0 - hyper.lr * hyper.weight_decay)
    elif single(hyper.weight_decay) != 0.0:
        grad = fma(single(hyper.weight_decay), param, grad)
    weight = single(1.0 - hyper.beta1)
    if weight < 0.5:
        exp_avg = fma(weight, grad - exp_avg, exp_avg)
    else:
        exp_avg = fma(weight - 1.0, grad - exp_avg, grad)
    exp_avg_sq = fma(single(1.0 - hyper.beta2) * grad, grad, exp_avg_sq * single(hyper.beta2))
    greatest = None if greatest is None else torch.maximum(greatest, exp_avg_sq)
    root = (exp_avg_sq if greatest is None else greatest).double().sqrt().float()
    denominator = root / single(math.sqrt(correction2)) + single(hyper.eps)
    param = param + (exp_avg * single(-(hyper.lr / correction1))) / denominator
    return param, exp_avg, exp_avg_sq, greatest


class ReferenceAdam(TorchFusedAdam):
    """Torch's fused Adam with its update of one task replaced."""

    def update_task(self, task: AdamTask, grad_scale: float) -> None:
        """See TorchFusedAdam.update_task."""
        _update(task, grad_scale)


def _update(task: AdamTask, grad_scale: float) -> None:
    slot, into = task.slot, task.into or task.slot
    grad = task.grad.float() * torch.tensor(grad_scale, dtype=torch.float64, device=task.grad.device).float()
    greatest = None if slot.max_exp_avg_sq is None else slot.max_exp_avg_sq.float()
    moments = slot.exp_avg.float(), slot.exp_avg_sq.float(), greatest
    param, exp_avg, exp_avg_sq, greatest = adam_elements(slot.param, *moments, grad, task.step, task.hyper)
    param = canonical(param)
    low = high = None
    if task.rounding_seed is not None and slot.exp_avg.dtype is torch.bfloat16:
        bits = random_bits(task.rounding_seed, task.step, task.rounding_offset, param.numel(), param.device)
        low, high = bits & 0xFFFF, bits >> 16
    into.param.copy_(param)
    _store_moment(into.exp_avg, exp_avg, low)
    _store_moment(into.exp_avg_sq, exp_avg_sq, high)
    if into.max_exp_avg_sq is not None and greatest is not None:
        _store_moment(into.max_exp_avg_sq, greatest, high)
    if task.param_out is not None:
        task.param_out.copy_(round_nearest(param, task.param_out.dtype))


def _store_moment(to: Tensor, moment: Tensor, random: Tensor | None) -> None:
    moment = canonical(moment)
    to.copy_(round_nearest(moment, to.dtype) if random is None else round_stochastic(moment, random))


def canonical(values: Tensor) -> Tensor:
    """Return the float32 values with every NaN replaced by the quiet one without payload."""
    return torch.where(values.isnan(), torch.full_like(values, torch.nan), values)


def round_nearest(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values rounded to `dtype`, ties to even; NaN becomes the quiet one without payload."""
    rounded = values.to(dtype)
    return torch.where(rounded.isnan(), torch.full_like(rounded, torch.nan), rounded)


def round_stochastic(values: Tensor, random: Tensor) -> Tensor:
    """Return bfloat16 values: up with probability (dropped bits) / 2^16; `random`: 16-bit integers."""
    bits = values.view(torch.int32).to(torch.int64) & _MASK32
    up = torch.where(values.isnan(), torch.full_like(bits, 0x7FC0), (bits + random) >> 16)
    return (up - ((up & 0x8000) << 1)).to(torch.int16).view(torch.bfloat16)


def random_bits(seed: int, step: int, offset: int, count: int, device: torch.device) -> Tensor:
    """Return int64 [count]: 32 random bits for elements offset, offset + 1, ... of stream (seed, step)."""
    element = torch.arange(offset, offset + count, dtype=torch.int64, device=device)
    result = torch.empty_like(element)
    for block in range(offset >> 32, ((offset + count - 1) >> 32) + 1):
        key = _mix(_mix(_mix(seed) ^ step) ^ block)
        inside = (element >> 32) == block
        result[inside] = _hash(element[inside] & _MASK32, key & _MASK32, key >> 32)
    return result


def _hash(x: Tensor, counter: int, between: int) -> Tensor:
    x = x ^ counter
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK32
    x = ((x ^ (x >> 15)) + between) & _MASK32
    x = ((x ^ (x >> 16)) * 0xD35A2D97) & _MASK32
    return x ^ (x >> 15)


def _mix(x: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
