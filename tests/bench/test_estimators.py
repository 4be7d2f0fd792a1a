"""What the benches of estimates conclude from their figures."""

import pytest

from zbench.bench.estimators import Peak, summary
from zbench.bench.roofline import HeldTime, trials_of
from zbench.estimate.roofline import StepTime


def peak(zbench: int, deepspeed: int | None, accelerate: int | None = None) -> Peak:
    return Peak({"zero_stage": 2}, 1000, zbench, deepspeed, accelerate)


def test_errors_are_shares_of_what_was_measured_and_missing_figures_count_for_nobody() -> None:
    text, is_met = summary([peak(1010, 500), peak(1000, None, 2000), peak(990, 1400)])
    assert "zbench: median error 1.00%, largest 1.00%, of 3 runs" in text
    assert "deepspeed: median error 45.00%, largest 50.00%, of 2 runs" in text
    assert "accelerate: median error 100.00%, largest 100.00%, of 1 runs" in text
    assert is_met


def test_an_error_that_is_not_ten_times_smaller_is_told() -> None:
    assert not summary([peak(1010, 1090), peak(1010, 1090, 2000)])[1]


@pytest.mark.parametrize(("seconds", "inside"), [(0.9, False), (1.0, True), (2.0, True), (2.1, False)])
def test_a_step_lies_in_its_range_ends_included(seconds: float, inside: bool) -> None:
    held = HeldTime("gpt", {}, StepTime(1.0, 2.0, 1.0, 0.0, 0.0, 0.0), seconds)
    assert held.is_inside is inside
    assert ("outside" in held.row()) is not inside


def test_both_parts_have_configurations_that_differ() -> None:
    for part in ("quickstart", "gpt"):
        trials = trials_of(part)
        assert len({trial.trial_id for trial in trials}) == len(trials) > 10
        assert {trial.verify.mode for trial in trials} == {"off"}
