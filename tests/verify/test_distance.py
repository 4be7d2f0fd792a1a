"""Distances on numbers that can be worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from zbench.verify.distance import Difference, Errors, difference_of, distances_of, errors_of

SMALLEST = 2.0**-149  # of what float32 can hold beside zero


def named(*values: Tensor) -> dict[str, Tensor]:
    return dict(zip("abcdefgh", values, strict=False))


def compare(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> Difference:
    return difference_of(distances_of(mine, theirs), list(theirs))


def errors(mine: dict[str, Tensor], yardstick: dict[str, Tensor], truth: dict[str, Tensor]) -> Errors:
    return errors_of(distances_of(mine, yardstick, truth), list(truth))


def test_differences_in_size_units_in_the_last_place_and_l2() -> None:
    theirs = named(torch.tensor([1.0, -1.0]), torch.tensor([0.0]))
    mine = named(torch.tensor([1.0 + 2**-22, -1.0]), torch.tensor([0.5]))
    spread = compare({"a": mine["a"]}, {"a": theirs["a"]})
    assert (spread.max_abs, spread.max_ulp, spread.distance) == (2**-22, 2, 2**-22)
    spread = compare(mine, theirs)
    assert (spread.max_abs, spread.farthest) == (0.5, "b")
    assert spread.distance == pytest.approx(math.hypot(0.5, 2**-22))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_values_that_are_not_finite_are_named_and_not_measured(value: float) -> None:
    spread = compare(named(torch.ones(2), torch.tensor([1.0, value])), named(torch.ones(2), torch.ones(2)))
    assert (spread.not_finite, spread.max_abs, spread.max_ulp) == ("b", None, None)


def noise(size: float, seed: int, *, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [1 + size * torch.randn(5000, generator=generator, dtype=torch.float64) for _ in range(count)]


TRUTH = named(*(torch.ones(5000, dtype=torch.float64) for _ in range(3)))


@pytest.mark.parametrize("factor", [1.0, 3.0, 10.0, 1000.0])
def test_larger_noise_everywhere_shows_in_every_figure(factor: float) -> None:
    found = errors(named(*noise(factor * 1e-4, 1)), named(*noise(1e-4, 2)), TRUTH)
    assert found.overall == pytest.approx(factor, rel=0.1)
    assert found.typical == pytest.approx(factor, rel=0.1)
    assert found.ratio == pytest.approx(1 + (factor - 1) / 3, rel=0.1)


def test_a_fault_of_one_parameter_stands_out() -> None:
    mine = named(*noise(1e-4, 1))
    mine["b"] = mine["b"] + 0.05
    found = errors(mine, named(*noise(1e-4, 2)), TRUTH)
    assert max(found.each, key=lambda name: found.each[name]) == "b"
    assert found.local("b") > 100
    assert found.typical < 1.1


def test_one_unlucky_element_does_not_decide() -> None:
    mine = named(*noise(1e-6, 1))
    mine["a"][7] += 1e-3
    assert errors(mine, named(*noise(1e-6, 2)), TRUTH).ratio < 1.5


def test_an_exact_reference_condemns_nobody_for_rounding() -> None:
    exact = {name: value.float() for name, value in TRUTH.items()}
    roundoff = torch.finfo(torch.float32).eps / 2
    rounded = {name: value * (1 + roundoff) for name, value in TRUTH.items()}
    assert errors(rounded, exact, TRUTH).ratio == pytest.approx(1)
    assert errors(exact, exact, TRUTH).ratio == 0
    far = {name: value * 1.001 for name, value in TRUTH.items()}
    assert errors(far, exact, TRUTH).ratio > 1000


@pytest.mark.parametrize(
    ("value", "truth", "ratio"),
    [
        (0.0, 0.0, 0.0),
        (SMALLEST, 0.0, 1.0),  # within rounding
        (2.0**-125, 2.0**-125, 0.0),  # of which the rounding is the smallest value
        (1e-3, 0.0, pytest.approx(2e41, rel=1)),
    ],
)
def test_values_at_zero_are_judged_without_dividing_by_zero(value: float, truth: float, ratio: float) -> None:
    exact = named(torch.full((3000,), truth, dtype=torch.float64))
    rounded = {name: values.float() for name, values in exact.items()}
    assert errors(named(torch.full((3000,), value)), rounded, exact).ratio == ratio
