"""A reference that is itself far from its float64 run is no yardstick: nothing is called equivalent by it."""

import dataclasses

import pytest
import torch

from tests.verify.test_verdict import NAMES, final, reference, trajectory, verdict_of
from zbench.record.record import VerdictName
from zbench.verify.trajectory import Reference, Trajectory
from zbench.verify.verdict import judge

OTHER_BITS = {step: set(NAMES) for step in range(4)}


def travelling(share: float) -> Reference:
    """A reference whose distance from its truth is this share of what it travelled."""
    made = reference()
    squares = [(made.plain.parameters[name].double() - made.truth[name]).square().sum() for name in NAMES]
    travelled = torch.stack(squares).sqrt() / share
    return dataclasses.replace(made, travelled=travelled)


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.1, "equivalent"), (0.249, "equivalent"), (0.251, "unchecked")]
)
def test_a_quarter_of_the_way_is_the_limit(share: float, verdict: VerdictName) -> None:
    found = judge(trajectory(final(1e-5, 1), differs=OTHER_BITS), travelling(share))
    assert found.correctness.verdict == verdict
    assert found.correctness.error_ratio == pytest.approx(1, abs=0.2)
    said = "".join(found.warnings)
    assert ("ended 25% of the way that it travelled away from its float64 run" in said) == (share > 0.25)


def test_its_own_bits_are_identical_and_what_is_farther_still_is_drifted() -> None:
    assert verdict_of(trajectory(final(1e-5, 0)), travelling(0.9)).verdict == "identical"
    far = trajectory(final(3e-4, 1), differs=OTHER_BITS)
    assert verdict_of(far, travelling(0.9)).verdict == verdict_of(far, travelling(0.1)).verdict == "drifted"


def test_exactly_a_quarter_of_the_way_is_too_far() -> None:
    """One weight that travelled from 0 to 1 where the truth is 0.75; another run ended at 0.5."""
    plain, other = (one_weight(value, digest) for value, digest in ((1.0, 1), (0.5, 2)))
    against = Reference(plain, torch.ones(1, dtype=torch.float64), {}, {"w": torch.tensor([0.75]).double()})
    assert verdict_of(other, against).verdict == "unchecked"
    farther = dataclasses.replace(against, travelled=torch.full((1,), 1.01, dtype=torch.float64))
    assert verdict_of(other, farther).verdict == "equivalent"


def one_weight(value: float, digest: int) -> Trajectory:
    losses, norms = torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    return Trajectory(("w",), losses, norms, torch.tensor([[digest]]), {"w": torch.tensor([value])})
