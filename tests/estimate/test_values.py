"""What a simulation knows of values, and what it refuses."""

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zbench.estimate.reading import explained
from zbench.estimate.search import largest, smallest
from zbench.estimate.simulate import SimulatedLedger, simulate
from zbench.spec.trial import TrialSpec


def trial(**engine: object) -> TrialSpec:
    workload = {"options": {"layers": 1, "width": 32, "heads": 2}, "sequence_length": 16}
    return TrialSpec.model_validate({"workload": workload, "run": {"world_size": 64}, "engine": engine})


def test_whole_numbers_that_follow_from_shapes_are_known_and_computed_ones_are_not() -> None:
    ledger = SimulatedLedger()
    with FakeTensorMode(), ledger.watching(), ledger.during("forward"):
        assert int((torch.arange(5) + 1).sum()) == 15
        with pytest.raises(Exception, match="_local_scalar_dense") as told:
            bool(torch.randn(3).sum() > 0)
    assert "control flow on shapes" in explained(told.value)


def test_a_shape_that_depends_on_data_is_named_with_the_remedy() -> None:
    with FakeTensorMode(), SimulatedLedger().watching(), pytest.raises(Exception, match="nonzero") as told:
        torch.randn(3).nonzero()
    assert "aten.nonzero.default" in explained(told.value)
    assert "fixed shape" in explained(told.value)


def test_nothing_is_held_after_the_step_that_was_not_before_it() -> None:
    step = simulate(trial(zero_stage=3, gradient_clipping=1.0), Path.cwd())
    held = step.ledger.by_category(step.end, host=False)
    for name in ("parameters", "moments"):
        assert abs(held[name] - step.engine_bytes[name]) <= 256, name  # scalars that released weights share
    assert (
        sum(step.ledger.by_category(step.ledger.peak_moment[False], host=False).values())
        == (step.ledger.peak[False])
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 4096])
def test_bisection_finds_the_limit(limit: int) -> None:
    assert smallest(lambda n: n >= limit, 4096) == limit
    assert largest(lambda n: n <= limit, 4096) == limit
    assert smallest(lambda n: False, 4096) is None
    assert largest(lambda n: False, 4096) is None
