"""The reference's arithmetic after backward, each rule by itself; its optimizer has torch's own bits."""

import math

import pytest
import torch
from torch import Tensor

from zbench.spec.engine import EngineSpec
from zbench.verify.plain_numerics import (
    Gradients,
    GradientSums,
    LossScale,
    PlainAdam,
    RankOrder,
    clipping_factor,
)

THIRD = torch.tensor([1 / 3])


def summed_over_ranks(ranks: int, *, exact: bool = False, **engine: object) -> Tensor:
    sums = GradientSums(EngineSpec.model_validate(engine), ranks=ranks, several=False, exact=exact)
    total: Gradients = {}
    for _ in range(ranks):
        sums.add_rank(total, {"weight": THIRD.double() if exact else THIRD})
    value = total["weight"]
    assert value is not None
    return value


def test_ranks_are_added_as_they_are_sent_and_the_exact_runs_as_they_are() -> None:
    assert torch.equal(summed_over_ranks(2), THIRD + THIRD)
    rounded = THIRD.bfloat16().float()
    assert torch.equal(summed_over_ranks(2, communication_dtype="bfloat16"), rounded + rounded)
    assert torch.equal(summed_over_ranks(1, communication_dtype="bfloat16"), THIRD), "it sends nothing"
    total = summed_over_ranks(2, exact=True, communication_dtype="bfloat16", grad_accum_dtype="bfloat16")
    assert total.dtype == torch.float64
    assert torch.equal(total, 2 * THIRD.double())


@pytest.mark.parametrize(("size", "total"), [(1, 1.0), (2, 0.0), (4, 1.0)])
def test_ranks_are_added_within_groups_and_then_over_groups(size: int, total: float) -> None:
    """In float32 1e8 + 1 is 1e8."""
    sums = GradientSums(EngineSpec(), ranks=4, several=False, exact=False)
    order = RankOrder(sums, size)
    for value in (1e8, 1.0, -1e8, 1.0):
        order.add({"weight": torch.tensor([value])})
    assert order.total["weight"] == torch.tensor([total])


@pytest.mark.parametrize("norm", [0.5, 1.0, 3.0, 1e30])
def test_clipping_is_torchs(norm: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.tensor([norm], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    assert clipping_factor(norm, 1.0) * norm == pytest.approx(parameter.grad.item(), rel=1e-15)
    assert clipping_factor(norm, 0.0) == 1.0
    assert math.isnan(clipping_factor(math.nan, 1.0))
    assert clipping_factor(math.inf, 1.0) == 0.0


@pytest.mark.parametrize(
    ("begin", "window", "squares", "scales"),
    [
        (8.0, 2, [math.inf, 1.0, 1.0, 1.0, math.nan, 1.0], [4.0, 4.0, 8.0, 8.0, 4.0, 4.0]),
        (8.0, 3, [1.0, 1.0, 1.0, 1.0], [8.0, 8.0, 16.0, 16.0]),
        (1.5, 2, [math.inf, math.inf], [1.0, 1.0]),
    ],
    ids=["overflows", "first_window", "never_below_one"],
)
def test_the_loss_scale_halves_on_overflow_and_doubles_after_a_window(
    begin: float, window: int, squares: list[float], scales: list[float]
) -> None:
    spec = EngineSpec(dtype="float16", initial_loss_scale=begin, loss_scale_window=window)
    scale = LossScale(spec, exact=False)
    taken = [(scale.accepts(square), scale.scale) for square in squares]
    assert taken == [(math.isfinite(s), after) for s, after in zip(squares, scales, strict=True)]


SIZES = {"a.weight": (16, 32), "a.bias": (48,), "b.weight": (64, 16)}  # of 16: torch has no odd tail


def initial(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SIZES.items()}


def gradients(step: int) -> dict[str, Tensor]:
    return initial(100 + step)


def plain_adam(dtype: torch.dtype = torch.float32, **keys: object) -> PlainAdam:
    return PlainAdam(initial(), EngineSpec.model_validate(keys), dtype)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)])
def test_padding_changes_no_bit_of_torchs_fused_adam(
    name: str, kind: type[torch.optim.Adam], amsgrad: bool
) -> None:
    hyper = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6, "amsgrad": amsgrad}
    ours = plain_adam(optimizer={"name": name, **hyper})
    theirs = initial()
    adamw = kind(theirs.values(), fused=True, **hyper)
    for step in range(5):
        ours.step(gradients(step), 0.5)
        for name, gradient in gradients(step).items():
            theirs[name].grad = gradient * 0.5
        adamw.step()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.values().items())


def test_groups_take_the_first_pattern_that_matches() -> None:
    groups = {"*.bias": {"lr": 0.0}, "a.*": {"weight_decay": 0.0}}
    grouped = plain_adam(param_groups=groups)
    plain = plain_adam()
    undecayed = plain_adam(optimizer={"weight_decay": 0.0})
    for adam in (grouped, plain, undecayed):
        adam.step(gradients(0), 1.0)
    values = grouped.values()
    assert torch.equal(values["a.bias"], initial()["a.bias"])
    assert torch.equal(values["a.weight"], undecayed.values()["a.weight"])
    assert torch.equal(values["b.weight"], plain.values()["b.weight"])


def test_without_bias_correction_moments_are_used_as_they_are() -> None:
    adam = plain_adam(torch.float64, optimizer={"bias_correction": False, "weight_decay": 0.0})
    adam.step(gradients(0), 1.0)
    for name, value in adam.values().items():
        g = gradients(0)[name].double()
        expected = initial()[name].double() - 1e-3 * (0.1 * g) / ((0.001 * g * g).sqrt() + 1e-8)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_a_parameter_without_gradient_keeps_its_value_and_its_step_count() -> None:
    skipping, plain = (plain_adam() for _ in range(2))
    skipping.step(gradients(0) | {"a.bias": None}, 1.0)
    assert torch.equal(skipping.values()["a.bias"], initial()["a.bias"])
    skipping.step(gradients(1), 1.0)
    plain.step(gradients(1), 1.0)
    assert torch.equal(skipping.values()["a.bias"], plain.values()["a.bias"])


def test_short_moments_are_rounded_after_each_step_in_float32_only() -> None:
    short = plain_adam(optimizer={"moments_dtype": "bfloat16"})
    exact = plain_adam(torch.float64, optimizer={"moments_dtype": "bfloat16"})
    for adam in (short, exact):
        adam.step(gradients(0), 1.0)
    for name, moment in short.first_moments().items():
        assert torch.equal(moment, moment.bfloat16().float())
        assert not torch.equal(exact.first_moments()[name], exact.first_moments()[name].bfloat16().double())
