"""Sums of gradients, in rank order and in order of micro-batches: always added in float32, on any device."""

from collections.abc import Sequence

from torch import Tensor

from zbench.engine import adam


def sum_in_rank_order(out: Tensor, parts: Sequence[Tensor]) -> None:
    """out [n] float32 = ((parts[0] + parts[1]) + parts[2]) + ..., parts [n] float32, bfloat16 or float16."""
    if out.device.type == "cpu":
        adam.sum_in_rank_order(out, parts)
    else:
        add_in_rank_order(out, parts)


def add_in_rank_order(out: Tensor, parts: Sequence[Tensor]) -> None:
    """Give out the same sums by torch's own additions: for devices without a native kernel."""
    out.copy_(parts[0])
    for part in parts[1:]:
        out.add_(part)


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """total (contiguous) += gradient (same shape), added in float32 and rounded once to total's dtype."""
    if total.dtype == gradient.dtype:
        total.add_(gradient)
    elif total.device.type == "cpu":
        adam.add_cast_(total.view(-1), gradient.reshape(-1))
    else:
        total.copy_(total.float().add_(gradient))
