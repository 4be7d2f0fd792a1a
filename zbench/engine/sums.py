"""Sums of gradients: in rank order and in order of micro-batches, always added in float32."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sum_in_rank_order(out: Tensor, parts: Sequence[Tensor]) -> None:
    """out [n] float32 = ((parts[0] + parts[1]) + parts[2]) + ..., each part [n] float32, bfloat16 or
    float16.
    """
    if parts[0].dtype == out.dtype and len(parts) > 1:
        torch.add(parts[0], parts[1], out=out)
        rest = parts[2:]
    else:
        out.copy_(parts[0])
        rest = parts[1:]
    for part in rest:
        out.add_(part)


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """total += gradient, added in float32 and rounded once to `total`'s dtype; any shapes that agree."""
    if torch.promote_types(total.dtype, gradient.dtype) == total.dtype:
        total.add_(gradient)
    else:
        total.copy_(total.float().add_(gradient))
