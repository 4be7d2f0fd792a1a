"""The reference's arithmetic between backward and Adam, each rule by itself."""

import math

import pytest
import torch
from torch import Tensor

from zbench.spec.engine import EngineSpec
from zbench.verify.plain_numerics import (
    Gradients,
    GradientSums,
    LossScale,
    canonical_square_sum,
    clipping_factor,
    scaled_loss,
    square_sum,
)

THIRD = torch.tensor([1 / 3])
SUMS = (canonical_square_sum, square_sum)


def summed_over_ranks(ranks: int, *, exact: bool = False, **engine: object) -> Tensor:
    sums = GradientSums(EngineSpec.model_validate(engine), ranks=ranks, several=False, exact=exact)
    total: Gradients = {}
    for _ in range(ranks):
        sums.add_rank(total, {"weight": THIRD.double() if exact else THIRD})
    found = total["weight"]
    assert found is not None
    return found


def test_ranks_are_added_as_they_are_sent() -> None:
    assert torch.equal(summed_over_ranks(2), THIRD + THIRD)
    rounded = THIRD.bfloat16().float()
    assert torch.equal(summed_over_ranks(2, communication_dtype="bfloat16"), rounded + rounded)


def test_one_rank_sends_nothing() -> None:
    assert torch.equal(summed_over_ranks(1, communication_dtype="bfloat16"), THIRD)


def test_the_exact_run_is_not_rounded_on_its_way() -> None:
    found = summed_over_ranks(2, exact=True, communication_dtype="bfloat16", grad_accum_dtype="bfloat16")
    assert found.dtype == torch.float64
    assert torch.equal(found, 2 * THIRD.double())


@pytest.mark.parametrize(("several", "exact", "kept"), [
    (True, False, torch.bfloat16), (False, False, torch.float32), (True, True, torch.float64),
])  # fmt: skip
def test_gradients_rest_in_the_accumulation_dtype_between_micro_batches(
    several: bool, exact: bool, kept: torch.dtype
) -> None:
    spec = EngineSpec(dtype="bfloat16", grad_accum_dtype="bfloat16")
    sums, total = GradientSums(spec, ranks=1, several=several, exact=exact), Gradients()
    for value in (1.0, 1e-4):
        sums.add_micro_batch(total, {"weight": torch.tensor([value], dtype=torch.float64)})
    assert total["weight"] is not None
    assert total["weight"].dtype == kept


@pytest.mark.parametrize("add", ["add_micro_batch", "add_rank"])
def test_a_missing_gradient_adds_nothing(add: str) -> None:
    sums, total = GradientSums(EngineSpec(), ranks=2, several=True, exact=False), Gradients()
    for found in (None, THIRD, None):
        getattr(sums, add)(total, {"weight": found})
    assert total["weight"] is not None
    assert torch.equal(total["weight"], THIRD)
    getattr(sums, add)(total, {"unused": None})
    assert total["unused"] is None


@pytest.mark.parametrize("square_sum_of", SUMS)
def test_missing_and_empty_gradients_count_nothing(square_sum_of) -> None:
    found: Gradients = {"none": None, "empty": torch.empty(0, 3), "pair": torch.tensor([[3.0], [4.0]])}
    assert square_sum_of(found) == 25.0
    assert square_sum_of({"none": None, "empty": torch.empty(0)}) == 0.0
    assert square_sum_of({}) == 0.0


@pytest.mark.parametrize("square_sum_of", SUMS)
@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_square_sums_are_those_of_all_elements(square_sum_of, count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    assert square_sum_of({"a": values, "b": values}) == pytest.approx(
        2 * float(values.double().square().sum()), rel=1e-12
    )


@pytest.mark.parametrize("norm", [0.5, 1.0, 3.0, 1e30])
def test_clipping_is_torchs(norm: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.tensor([norm], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    assert clipping_factor(norm, 1.0) * norm == pytest.approx(parameter.grad.item(), rel=1e-15)
    assert clipping_factor(norm, 0.0) == 1.0


def test_a_norm_that_is_not_finite_is_passed_on() -> None:
    assert math.isnan(clipping_factor(math.nan, 1.0))
    assert clipping_factor(math.inf, 1.0) == 0.0


def test_the_loss_scale_halves_on_overflow_and_doubles_after_a_window() -> None:
    spec = EngineSpec(dtype="float16", initial_loss_scale=8.0, loss_scale_window=2)
    scale = LossScale(spec, exact=False)
    taken = [(scale.accepts(squares), scale.scale) for squares in (math.inf, 1.0, 1.0, 1.0, math.nan, 1.0)]
    assert taken == [(False, 4.0), (True, 4.0), (True, 8.0), (True, 8.0), (False, 4.0), (True, 4.0)]


def test_the_first_window_is_a_whole_one() -> None:
    spec = EngineSpec(dtype="float16", initial_loss_scale=8.0, loss_scale_window=3)
    scale = LossScale(spec, exact=False)
    assert [(scale.accepts(1.0), scale.scale)[1] for _ in range(4)] == [8.0, 8.0, 16.0, 16.0]


def test_the_loss_scale_never_falls_below_one() -> None:
    scale = LossScale(EngineSpec(dtype="float16", initial_loss_scale=1.5), exact=False)
    assert [scale.accepts(math.inf) for _ in range(3)] == [False] * 3
    assert scale.scale == 1.0


@pytest.mark.parametrize(("dtype", "exact"), [("float32", False), ("bfloat16", False), ("float16", True)])
def test_other_runs_have_no_loss_scale(dtype: str, exact: bool) -> None:
    scale = LossScale(EngineSpec.model_validate({"dtype": dtype}), exact=exact)
    assert scale.accepts(math.inf)
    assert scale.scale == 1.0


def test_the_loss_is_divided_then_scaled() -> None:
    loss = torch.tensor(3.0)
    assert scaled_loss(loss, 1, 1.0) is loss
    assert scaled_loss(loss, 3, 1.0).item() == 1.0
    assert scaled_loss(loss, 3, 8.0).item() == 8.0
