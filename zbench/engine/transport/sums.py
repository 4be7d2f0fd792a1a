"""Sums of gradients, in rank order and in order of micro-batches: always added in float32, on any device.

On the CPU each sum is one pass of native code over memory; on a device, torch's own additions.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.contract import GRAD_DTYPES, check_flat
from zbench.engine.adam.native import DTYPE_CODES, call_native


def sum_in_rank_order(out: Tensor, parts: Sequence[Tensor]) -> None:
    """out [n] float32 = ((parts[0] + parts[1]) + parts[2]) + ..., every addition in float32.

    parts [n] each, all of one dtype (float32, bfloat16 or float16); `out` may be one of them. On the CPU,
    ValueError names a wrong argument.
    """
    if out.device.type != "cpu":
        add_in_rank_order(out, parts)
        return
    check_flat("out", out, out.numel(), (torch.float32,), "cpu")
    check_flat("parts[0]", parts[0], out.numel(), GRAD_DTYPES, "cpu")
    for index, part in enumerate(parts):
        check_flat(f"parts[{index}]", part, out.numel(), (parts[0].dtype,), "cpu")
    call_native(partial(sum_memory, out, parts), [out, *parts])


def add_in_rank_order(out: Tensor, parts: Sequence[Tensor]) -> None:
    """Give out the same sums by torch's own additions: for devices without a native kernel."""
    out.copy_(parts[0])
    for part in parts[1:]:
        out.add_(part)


def sum_memory(out: Tensor, parts: Sequence[Tensor], *, threads: int | None = None) -> None:
    """Sum CPU tensors in rank order, unchecked but for overlap: for use inside native calls.

    threads: None uses torch.get_num_threads().
    """
    for index, part in enumerate(parts):
        _check_apart(f"parts[{index}]", part, out)
    _native.sum_parts(
        out=out.data_ptr(),
        parts=[part.data_ptr() for part in parts],
        numel=out.numel(),
        dtype=DTYPE_CODES[parts[0].dtype],
        accumulate=False,
        threads=threads or torch.get_num_threads(),
    )


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """total (contiguous) += gradient (same shape), added in float32 and rounded once to total's dtype.

    Each is float32, bfloat16 or float16.
    """
    if total.dtype == gradient.dtype:
        total.add_(gradient)
    elif total.device.type == "cpu":
        out, addend = total.view(-1), gradient.reshape(-1)
        call_native(partial(_add_cast, out, addend), [out, addend])
    else:
        total.copy_(total.float().add_(gradient))


def _add_cast(out: Tensor, addend: Tensor) -> None:
    _check_apart("gradient", addend, out)
    _native.add_cast(
        out=out.data_ptr(),
        grad=addend.data_ptr(),
        numel=out.numel(),
        dtypes=(DTYPE_CODES[out.dtype], DTYPE_CODES[addend.dtype]),
        threads=torch.get_num_threads(),
    )


def _check_apart(name: str, tensor: Tensor, out: Tensor) -> None:
    """Elementwise, a tensor may be `out` itself; shifted against it, it would be read after being written."""
    begin, out_begin = tensor.data_ptr(), out.data_ptr()
    apart = begin + tensor.nbytes <= out_begin or out_begin + out.nbytes <= begin
    if not apart and (begin != out_begin or tensor.dtype is not out.dtype):
        raise ValueError(f"{name}: overlaps out: expected memory of its own, or out's exactly")
