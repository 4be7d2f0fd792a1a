"""The rounding noise of a reference: which gradients it decides, and how it grows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from zbench.verify.noise import growth, least_shares, unresolved
from zbench.verify.replay import Adam
from zbench.verify.trajectory import Reference, Trajectory

ADAM = Adam(1e-3, 0.9, 0.999, 1e-8, 0.0, bias_correction=True, amsgrad=False, decoupled=True)
NAMES = ("weight", "bias")


def reference(errors: Tensor, active: Tensor | None = None) -> Reference:
    """Return a reference of S steps whose first moments are off by these shares [S, 2] of exact ones of 1."""
    steps = len(errors)
    true = torch.zeros(steps + 1, 2, 2, 128, dtype=torch.float64)
    true[1:, :, 1] = 1.0
    plain = true.clone()
    plain[1:, :, 1] += errors[:, :, None]
    digests = torch.zeros(steps, 2, dtype=torch.int64)
    trajectory = Trajectory(NAMES, torch.ones(steps, 1, 1), torch.ones(steps), digests, sketches=plain)
    active = torch.ones(steps, 2, dtype=torch.bool) if active is None else active
    shapes = {key: [1] for key in NAMES}
    return Reference(trajectory, torch.ones(2), active, shapes, {}, true_sketches=true)


@pytest.mark.parametrize(("smallest", "names"), [(0.49, set()), (0.51, {"bias"})])
def test_a_gradient_is_unresolved_if_half_of_it_is_noise_in_every_step(
    smallest: float, names: set[str]
) -> None:
    assert unresolved(reference(torch.tensor([[1e-6, 3.0], [9.0, smallest], [9.0, 9.0]]))) == names


def test_a_gradient_that_is_exactly_zero_in_float64_is_unresolved() -> None:
    noisy = reference(torch.tensor([[1e-6, 1e-6]]))
    noisy.true_sketches[1:, 1, 1] = 0.0
    assert unresolved(noisy) == {"bias"}
    noisy.plain.sketches[1:, 1, 1] = 0.0  # as without any gradient
    assert unresolved(noisy) == set()


def test_a_parameter_without_a_gradient_is_not_called_noise() -> None:
    never = torch.tensor([[True, False], [True, False]])
    assert unresolved(reference(torch.full((2, 2), 1e-6), never)) == set()
    late = torch.tensor([[True, False], [True, True]])
    assert unresolved(reference(torch.tensor([[1e-6, 0.0], [1e-6, 0.9]]), late)) == {"bias"}


def test_an_error_counts_from_a_hundredth_of_the_way_and_from_what_divergence_makes_of_1e_4() -> None:
    adams = dict.fromkeys(NAMES, ADAM)
    calm = reference(torch.tensor([[1e-6, 1e-6], [1e-6, 2e-6]]))
    assert least_shares(calm, adams) == dict.fromkeys(NAMES, 1e-2)
    assert least_shares(calm, adams, 1e-4)["weight"] == pytest.approx(1e-4, rel=1e-6)
    wild = reference(torch.tensor([[1e-6, 1e-6], [1e-6, 1e-3]]))
    assert growth(wild)["bias"] == pytest.approx(1000, rel=1e-6)
    assert least_shares(wild, adams)["bias"] == pytest.approx(0.1, rel=1e-6)
    nothing = replace(calm, true_sketches=torch.zeros(0))
    assert growth(nothing) == dict.fromkeys(NAMES, 1.0)
    assert unresolved(nothing) == set()
