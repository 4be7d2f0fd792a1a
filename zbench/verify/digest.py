"""A 64-bit digest of a tensor's bits: equal bits give equal digests, and others almost surely do not."""

from functools import cache

import torch
from torch import Tensor

_BLOCK = 1 << 15
_BLOCKS_AT_ONCE = 32
_MASK = (1 << 64) - 1


def digest(tensor: Tensor) -> int:
    """Return a signed 64-bit digest of the bits of a tensor of any shape, dtype and device.

    It is the sum modulo 2^64 of the tensor's 8-byte words, each times an odd constant of its place
    (multilinear hashing). Addition modulo 2^64 has no order, so threads and slices do not matter; one changed
    word always changes the sum, and several cancel with a probability of about 2^-63. -0.0 and 0.0 differ, as
    their bits do.
    """
    words = _words(tensor.detach())
    total = 0
    span = _BLOCK * _BLOCKS_AT_ONCE
    factors = _factors(tensor.device)
    for first in range(0, words.numel(), span):
        part = words[first : first + span]
        whole = part.numel() // _BLOCK * _BLOCK
        sums = (part[:whole].view(-1, _BLOCK) * factors).sum(dim=1).tolist()
        if whole < part.numel():
            sums.append(int((part[whole:] * factors[: part.numel() - whole]).sum()))
        for offset, block_sum in enumerate(sums):
            total += block_sum * _odd(first // _BLOCK + offset)
    total &= _MASK
    return total - (1 << 64) if total >> 63 else total


def _words(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes as int64 words, the last one filled up with zeros."""
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    rest = raw.numel() % 8
    if rest:
        raw = torch.cat([raw, raw.new_zeros(8 - rest)])
    return raw.view(torch.int64)


@cache
def _factors(device: torch.device) -> Tensor:
    """Return one odd constant for each place in a block."""
    return torch.tensor([_signed(_odd(-1 - place)) for place in range(_BLOCK)], device=device)


def _odd(number: int) -> int:
    """Return an odd 64-bit constant that looks random (the finaliser of SplitMix64)."""
    z = (number * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) | 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
