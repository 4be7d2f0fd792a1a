"""Sums of gradients, in rank order and in order of micro-batches: always added in float32, on any device.

Each sum is one pass over memory, by native code on the CPU and by a kernel on CUDA, else torch's additions.
"""

import ctypes
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.contract import GRAD_DTYPES, check_flat
from zbench.engine.adam.cuda import cuda_unavailable_reason
from zbench.engine.adam.device_kernels import launch
from zbench.engine.adam.native import DTYPE_CODES, call_native


def sum_in_rank_order(out: Tensor, parts: Sequence[Tensor]) -> None:
    """out [n] float32 = ((parts[0] + parts[1]) + parts[2]) + ..., every addition in float32.

    parts [n] each, all of one dtype (float32, bfloat16 or float16); `out` may be one of them. On the CPU,
    ValueError names a wrong argument.
    """
    if out.device.type != "cpu":
        if follow_one_another(out, parts) and cuda_unavailable_reason() is None:
            call_native(partial(_sum_on_device, out, parts), [out, *parts])
        else:
            add_in_rank_order(out, parts)
        return
    check_flat("out", out, out.numel(), (torch.float32,), "cpu")
    check_flat("parts[0]", parts[0], out.numel(), GRAD_DTYPES, "cpu")
    for index, part in enumerate(parts):
        check_flat(f"parts[{index}]", part, out.numel(), (parts[0].dtype,), "cpu")
    call_native(partial(sum_memory, out, parts), [out, *parts])


def sum_blocks(numel: int) -> int:
    """Return the blocks of the device's kernel for so many elements: each thread adds four."""
    return -(-numel // (4 * _native.DEVICE_BLOCK_THREADS))


def follow_one_another(out: Tensor, parts: Sequence[Tensor]) -> bool:
    """Whether the device's kernel can read the parts: one behind the other, four elements at a time."""
    first = parts[0].data_ptr()
    size = parts[0].nbytes
    there = all(part.data_ptr() == first + k * size for k, part in enumerate(parts))
    return there and out.numel() % 4 == 0 and out.data_ptr() % 16 == 0 and first % 16 == 0


def _sum_on_device(out: Tensor, parts: Sequence[Tensor]) -> None:
    """Add in one pass, on the current stream."""
    arguments = (
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_void_p(parts[0].data_ptr()),
        ctypes.c_int(len(parts)),
        ctypes.c_int64(out.numel()),
    )
    code, threads = DTYPE_CODES[parts[0].dtype], _native.DEVICE_BLOCK_THREADS
    launch("sum_parts", out.device, sum_blocks(out.numel()), threads, *arguments, ZBENCH_GRAD=code)


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
        threads=threads or torch.get_num_threads(),
    )


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """total (contiguous) += gradient (same shape), added in float32 and rounded once to total's dtype.

    Each is float32, bfloat16 or float16.
    """
    if total.dtype == gradient.dtype:
        total.add_(gradient)
    elif total.device.type == "cpu":
        out = total.view(-1)
        addend = gradient.reshape(-1)
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
