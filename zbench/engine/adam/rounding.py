"""Rounding to 16 bits as the contract defines it, in plain torch operations."""

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


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
