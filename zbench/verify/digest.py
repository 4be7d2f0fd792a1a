"""A 64-bit digest of a tensor's bits: equal bits give equal digests, and others almost surely do not."""

from functools import cache

import torch
from torch import Tensor

_BLOCK = 1 << 16
_BASE = 0x9E3779B97F4A7C15


def digest(tensor: Tensor) -> int:
    """Return a signed 64-bit digest of the bits of a tensor of any shape, dtype and device.

    Modulo 2^64, each block of 8-byte words is the sum of its words, each times an odd number of its place
    (multilinear hashing), and the blocks are the coefficients of a polynomial at an odd number. One changed
    word always changes the digest; several cancel with a probability of about 2^-63. -0.0 and 0.0 differ, as
    their bits do.
    """
    words = _words(tensor.detach())
    factors = _factors(words.device)
    total = 0
    for block in torch.split(words, _BLOCK):
        total = (total * _BASE + int((block * factors[: len(block)]).sum())) % 2**64
    return total - 2**64 * (total >= 2**63)


def _words(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes as int64 words, the last one filled up with zeros."""
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    if rest := len(raw) % 8:
        raw = torch.cat([raw, raw.new_zeros(8 - rest)])
    return raw.view(torch.int64)


@cache
def _factors(device: torch.device) -> Tensor:
    """Return one odd number for each place in a block."""
    numbers = torch.randint(-(2**63), 2**63 - 1, (_BLOCK,), generator=torch.Generator().manual_seed(0))
    return (numbers | 1).to(device)
