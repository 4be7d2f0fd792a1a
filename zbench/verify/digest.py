"""A 64-bit digest of a tensor's bits: equal bits give equal digests, and others almost surely do not."""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK = 1 << 15
_BLOCKS_AT_ONCE = 32


def digest(tensor: Tensor) -> int:
    """Return a signed 64-bit digest of the bits of a tensor of any shape, dtype and device.

    It is the sum modulo 2^64 of the tensor's 8-byte words, each times an odd constant of its place
    (multilinear hashing). Addition modulo 2^64 has no order, so threads and slices do not matter; one changed
    word always changes the sum, and several cancel with a probability of about 2^-63. -0.0 and 0.0 differ, as
    their bits do.
    """
    words = _words(tensor.detach())
    total = np.zeros((), np.uint64)  # an array: numpy warns when a scalar wraps around
    span = _BLOCK * _BLOCKS_AT_ONCE
    factors = _factors(tensor.device)
    for first in range(0, words.numel(), span):
        part = words[first : first + span]
        whole = part.numel() // _BLOCK * _BLOCK
        rest = part[whole:]
        sums = torch.cat([
            (part[:whole].view(-1, _BLOCK) * factors).sum(dim=1),
            (rest * factors[: rest.numel()]).sum().view(1),
        ])  # fmt: skip
        blocks = np.arange(len(sums), dtype=np.uint64) + np.uint64(first // _BLOCK)
        total += (sums.cpu().numpy().view(np.uint64) * _odd(blocks)).sum()
    return int(total.view(np.int64))


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
    return torch.from_numpy(_FACTORS).to(device)


def _odd(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return odd constants modulo 2^64 that look random (the finaliser of SplitMix64)."""
    z = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


_FACTORS = _odd(-np.arange(1, _BLOCK + 1, dtype=np.int64).view(np.uint64)).view(np.int64)  # once per server
