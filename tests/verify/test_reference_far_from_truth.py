"""A reference that is itself far from its float64 run is no yardstick: nothing is called equivalent by it."""

import dataclasses

import pytest
import torch

from tests.verify.test_verdict import NAMES, final, reference, trajectory, verdict_of
from zbench.record.record import VerdictName
from zbench.verify.trajectory import Reference
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
