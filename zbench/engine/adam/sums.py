"""Sums of gradients on the CPU in one pass each: over ranks, over micro-batches, and their squares."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.checks import GRAD_DTYPES, check_flat
from zbench.engine.adam.contract import NORM_CHUNK
from zbench.engine.adam.ops import call_native
from zbench.engine.adam.plan import DTYPE_CODES


def sum_in_rank_order(
    out: Tensor,
    parts: Sequence[Tensor],
    *,
    accumulate: bool = False,
    squares: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., every addition in float32.

    out [n] float32, which may be the very memory of one of the parts; parts [n] each, all of one dtype
    (float32, bfloat16 or float16). accumulate: out[i] + (that sum) instead. squares [ceil(n / 256)] float64:
    receives the new out's canonical chunk sums (see AdamBackend.chunk_square_sums) in the same pass.
    threads: None uses torch.get_num_threads(). ValueError names a wrong argument. Fake tensors: no-op.
    """
    _check_sum(out, parts, squares)
    tensors = [out, *parts] if squares is None else [out, *parts, squares]
    call_native(
        partial(sum_memory, out, parts, accumulate=accumulate, squares=squares, threads=threads), tensors
    )


def sum_memory(
    out: Tensor,
    parts: Sequence[Tensor],
    *,
    accumulate: bool = False,
    squares: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Do the same for tensors that have memory, unchecked but for overlap: for use inside native calls."""
    for index, part in enumerate(parts):
        _check_apart(f"parts[{index}]", part, out)
    _native.sum_parts(
        out=out.data_ptr(),
        parts=[part.data_ptr() for part in parts],
        numel=out.numel(),
        dtype=DTYPE_CODES[parts[0].dtype],
        accumulate=accumulate,
        squares=0 if squares is None else squares.data_ptr(),
        threads=threads or torch.get_num_threads(),
    )


def _check_sum(out: Tensor, parts: Sequence[Tensor], squares: Tensor | None) -> None:
    check_flat("out", out, out.numel(), (torch.float32,), "cpu")
    if not parts:
        raise ValueError("parts: expected at least one tensor, got none")
    if parts[0].dtype not in GRAD_DTYPES:
        raise ValueError(f"parts[0]: expected one of {GRAD_DTYPES}, got {parts[0].dtype}")
    for index, part in enumerate(parts):
        check_flat(f"parts[{index}]", part, out.numel(), (parts[0].dtype,), "cpu")
    if squares is not None:
        check_flat("squares", squares, -(-out.numel() // NORM_CHUNK), (torch.float64,), "cpu")


def add_cast_(out: Tensor, grad: Tensor, *, threads: int | None = None) -> None:
    """out[i] += grad[i] in float32, rounded once to out's dtype, to nearest even.

    out and grad [n]: each float32, bfloat16 or float16. ValueError names a wrong argument. Fake tensors:
    no-op.
    """
    check_flat("out", out, out.numel(), GRAD_DTYPES, "cpu")
    check_flat("grad", grad, out.numel(), GRAD_DTYPES, "cpu")
    call_native(partial(_add_cast, out, grad, threads), [out, grad])


def _add_cast(out: Tensor, grad: Tensor, threads: int | None) -> None:
    _check_apart("grad", grad, out)
    _native.add_cast(
        out=out.data_ptr(),
        grad=grad.data_ptr(),
        numel=out.numel(),
        dtypes=(DTYPE_CODES[out.dtype], DTYPE_CODES[grad.dtype]),
        threads=threads or torch.get_num_threads(),
    )


def _check_apart(name: str, tensor: Tensor, out: Tensor) -> None:
    """Elementwise, a tensor may be `out` itself; shifted against it, it would be read after being written."""
    begin, out_begin = tensor.data_ptr(), out.data_ptr()
    apart = begin + tensor.nbytes <= out_begin or out_begin + out.nbytes <= begin
    if not apart and (begin != out_begin or tensor.dtype is not out.dtype):
        raise ValueError(f"{name}: overlaps out: expected memory of its own, or out's exactly")
