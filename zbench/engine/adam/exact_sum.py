"""The sum of non-negative doubles without rounding: integers, which may be added in any order on any device.

An exact sum is int64 [EXACT_WORDS]: limb k (0 to 65) counts 2^(32 k - 1074), so the limbs hold every double;
two more words count infinities and NaNs. Ranks add theirs word by word, and `rounded` rounds the total, once.
Native form: csrc/adam/exact_sum.hpp.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from zbench._native import EXACT_LIMBS

EXACT_WORDS = EXACT_LIMBS + 2
_LEAST = 1 << 1074  # a double is a multiple of 1 / this
_FRACTION, _LIMB = (1 << 52) - 1, (1 << 32) - 1


def exact_zero(device: torch.device | str = "cpu") -> Tensor:
    """Return the exact sum of nothing."""
    return torch.zeros(EXACT_WORDS, dtype=torch.int64, device=device)


def add_exactly(sums: Tensor, values: Tensor) -> None:
    """Add non-negative `values` [n] float64 to the words, in plain torch: at most 2^31 in all."""
    bits = values.view(torch.int64)
    exponent = bits >> 52 & 0x7FF
    fraction = bits & _FRACTION
    special = exponent == 0x7FF
    normal = (exponent > 0).long()
    place = torch.where(special, 0, exponent - normal)  # of the last bit, from 2^-1074
    mantissa = torch.where(special, 0, fraction | normal << 52)
    limb = place >> 5
    shift = place & 31
    low, high = (mantissa & _LIMB) << shift, (mantissa >> 32) << shift
    middle = (low >> 32) + (high & _LIMB)  # less than 2^33
    pieces = low & _LIMB, middle & _LIMB, (high >> 32) + (middle >> 32)
    for index, piece in enumerate(pieces):
        sums.index_add_(0, limb + index, piece)
    sums[EXACT_LIMBS] += (special & (fraction == 0)).sum()
    sums[EXACT_LIMBS + 1] += (special & (fraction != 0)).sum()


def rounded(words: Sequence[int]) -> float:
    """Return the sum that the words [EXACT_WORDS] hold, correctly rounded to a double."""
    *limbs, infinities, nans = words
    if nans:
        return float("nan")
    total = sum(limb << 32 * index for index, limb in enumerate(limbs))
    try:
        return float("inf") if infinities else total / _LEAST
    except OverflowError:
        return float("inf")
