"""Operators of a card keep for the backward as many bytes as its fused kernels keep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import dropout, rms_norm, scaled_dot_product_attention

from zbench.estimate.counting import WorkCounter
from zbench.estimate.launches import StepCounter
from zbench.estimate.operators import operators_of_a_card
from zbench.estimate.simulate import SimulatedLedger

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 64, 32
ROWS = BATCH * HEADS * LENGTH
ELEMENTS = ROWS * WIDTH


def kept(operator: Callable[..., Tensor], *shapes: Any, dtype: torch.dtype, **keywords: Any) -> int:
    """Return the bytes that one call holds beside its inputs, until its backward has run to the end."""
    ledger = SimulatedLedger()
    with operators_of_a_card(), FakeTensorMode(), ledger.watching():
        inputs = [torch.empty(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        if keywords.get("attn_mask") is True:
            keywords["attn_mask"] = torch.empty(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
        before = ledger.live[False]
        out = operator(*inputs, **keywords)
        held = ledger.live[False] - before
        out.sum().backward()
        assert all(x.grad is not None and x.grad.shape == x.shape for x in inputs)
    return held


QUERY, FEWER = (BATCH, HEADS, LENGTH, WIDTH), (BATCH, HEADS // 2, LENGTH, WIDTH)
GENERATOR = 2 * 8  # bytes: seed and offset
SCORES = BATCH * HEADS * LENGTH * LENGTH


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keywords", [{}, {"is_causal": True, "dropout_p": 0.1}])
def test_attention_keeps_its_output_and_a_number_for_each_row(
    dtype: torch.dtype, keywords: dict[str, Any]
) -> None:
    nbytes = kept(scaled_dot_product_attention, QUERY, QUERY, QUERY, dtype=dtype, **keywords)
    assert nbytes == pytest.approx(ELEMENTS * dtype.itemsize + 4 * ROWS, abs=2 * GENERATOR)


def test_a_mask_is_kept_once_for_all_heads() -> None:
    nbytes = kept(scaled_dot_product_attention, QUERY, QUERY, QUERY, dtype=torch.bfloat16, attn_mask=True)
    mask = 2 * BATCH * LENGTH * LENGTH
    assert nbytes == pytest.approx(2 * ELEMENTS + 4 * ROWS + mask, abs=2 * GENERATOR)


def test_fewer_keys_than_queries_are_not_repeated_in_half_precision() -> None:
    flash, composed = (
        kept(scaled_dot_product_attention, QUERY, FEWER, FEWER, dtype=dtype, enable_gqa=True)
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert flash == pytest.approx(2 * ELEMENTS + 4 * ROWS, abs=2 * GENERATOR)
    assert composed > 4 * SCORES, "no fused kernel takes them in float32"


@pytest.mark.parametrize(
    ("dtype", "width", "value_width", "keys", "kernel"),
    [
        (torch.bfloat16, 256, 256, LENGTH, "Flash"),
        (torch.bfloat16, 264, 264, LENGTH, "Efficient"),
        (torch.bfloat16, 260, 260, LENGTH, None),
        (torch.bfloat16, 32, 32, LENGTH - 16, "Efficient"),
        (torch.float32, 36, 36, LENGTH, "Efficient"),
        (torch.float32, 32, 33, LENGTH, None),
        (torch.float64, 32, 32, LENGTH, None),
    ],
)
def test_causal_attention_takes_the_kernel_that_a_card_chooses(
    dtype: torch.dtype, width: int, value_width: int, keys: int, kernel: str | None
) -> None:
    shapes = ((LENGTH, width), (keys, width), (keys, value_width))
    with operators_of_a_card(), FakeTensorMode():
        inputs = [torch.empty(BATCH, HEADS, *s, dtype=dtype, requires_grad=True) for s in shapes]
        name = type(scaled_dot_product_attention(*inputs, is_causal=True).grad_fn).__name__
        without_heads = scaled_dot_product_attention(*(x[0] for x in inputs), is_causal=True)
    assert ("ScaledDotProduct" in name) == (kernel is not None)
    assert kernel is None or kernel in name
    assert "ScaledDotProduct" not in type(without_heads.grad_fn).__name__


def test_dropout_keeps_a_byte_for_each_element() -> None:
    assert kept(dropout, (8, 100), dtype=torch.bfloat16, p=0.1) == 8 * 100 * (2 + 1)
    assert kept(dropout, (8, 100), dtype=torch.bfloat16, p=0.0) == 0


def test_rms_norm_keeps_no_copies_in_float32() -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, (100,), weight, 1e-5)

    assert kept(norm, (8, 100), (100,), dtype=torch.bfloat16) == 8 * (100 * 2 + 4)

    def mixed(x: Tensor) -> Tensor:
        return rms_norm(x, (100,), torch.empty(100), 1e-5)

    assert kept(mixed, (8, 100), dtype=torch.bfloat16) > 8 * 100 * 4, "the fused kernel needs one dtype"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_causal_mask_halves_the_operations_of_a_cards_attention(dtype: torch.dtype) -> None:
    def flops(*, is_causal: bool) -> float:
        ledger = SimulatedLedger()
        ledger.counter = StepCounter(ledger, 1, is_card=True)
        ledger.work = WorkCounter(ledger.is_offloaded)
        with operators_of_a_card(), FakeTensorMode(), ledger.watching():
            q, k, v = (torch.empty(QUERY, dtype=dtype, requires_grad=True) for _ in range(3))
            scaled_dot_product_attention(q, k, v, is_causal=is_causal).sum().backward()
        return sum(each.flops for each in ledger.work.take().products)

    assert flops(is_causal=False) == 2 * WIDTH * SCORES * 7  # two products, then five
    assert flops(is_causal=True) == flops(is_causal=False) / 2


def test_the_processors_own_operators_are_back_afterwards() -> None:
    with operators_of_a_card():
        pass
    x = torch.ones(1, 1, 8, 4, requires_grad=True)
    assert "ForCpu" in type(scaled_dot_product_attention(x, x, x).grad_fn).__name__
    assert type(dropout(x, 0.5).grad_fn).__name__ == "MulBackward0"
