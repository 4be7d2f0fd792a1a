"""Operators as a card runs them, where a CPU's keep other tensors for the backward.

A CPU composes attention with dropout or a mask, dropout and RMS norm of operators that each keep what they
compute: scores, noise in the activations' dtype, float32 copies. A card's kernels are fused. Attention's is
chosen as by `select_sdp_backend` (ATen/native/transformers/cuda/sdp_utils.cpp) on an A100 or a later card.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_WIDEST = 256  # a head of flash attention
_ALIGNED = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4}
"""dtype -> what the width of a head is a multiple of in memory-efficient attention."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    inputs = (query, key, value)
    if _is_flash(*inputs, attn_mask, is_causal=is_causal):
        flash = _ATEN._scaled_dot_product_flash_attention.default
        return flash(*inputs, dropout_p, is_causal, False, scale=scale)[0]  # type: ignore[no-any-return]
    if _is_efficient(*inputs):
        if attn_mask is not None:
            attn_mask = _bias(attn_mask, query.dtype).expand(*query.shape[:3], key.shape[2])
        needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        efficient = _ATEN._scaled_dot_product_efficient_attention.default
        return efficient(*inputs, attn_mask, needs_backward, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]
    composed = _ATEN._scaled_dot_product_attention_math.default
    return composed(*inputs, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]  # type: ignore[no-any-return]


def _is_flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool) -> bool:
    square = not is_causal or query.shape[-2] == key.shape[-2]
    one_width = query.shape[-1] == key.shape[-1] == value.shape[-1] <= _WIDEST
    return query.dim() == 4 and query.dtype in _HALF and mask is None and square and one_width


def _is_efficient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    aligned = _ALIGNED.get(query.dtype)
    if query.dim() != 4 or aligned is None or not query.shape[1] == key.shape[1] == value.shape[1]:
        return False
    return query.shape[-1] % aligned == 0 and value.shape[-1] % aligned == 0


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as what is added to the scores."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return _ATEN.native_dropout.default(x, p, train)[0] if train and p else x


def _rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """The fused kernel needs one dtype. Layer norm stands for it; it keeps a mean of each row besides."""
    if weight is None or weight.dtype == x.dtype:
        return torch.native_layer_norm(x, shape, weight, None, eps or 0.0)[0]
    return _ATEN._fused_rms_norm.default(x, shape, weight, eps)[0]  # type: ignore[no-any-return]


_OF_A_CARD = {"scaled_dot_product_attention": _attention, "dropout": _dropout, "rms_norm": _rms_norm}


@contextmanager
def operators_of_a_card() -> Iterator[None]:
    """Have the body's calls of these operators, on tensors of the CPU without data, take a card's kernels."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, operator in _OF_A_CARD.items():
        library.impl(name, operator, "AutogradCPU")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
