"""What the benchmark of estimates concludes from its figures."""

from typing import Any

from tools.benchmarks import estimates


def peak(zbench: int, deepspeed: int | None, accelerate: int | None = None) -> dict[str, Any]:
    others = {"deepspeed": deepspeed, "accelerate": accelerate}
    return {"axes": {"zero_stage": 2}, "measured": 1000, "zbench": zbench, **others}


def test_errors_are_shares_of_what_was_measured_and_missing_figures_count_for_nobody() -> None:
    text, is_met = estimates.memory_text([peak(1010, 500), peak(1000, None, 2000), peak(990, 1400)])
    assert "zbench: median error 1.00%, largest 1.00%, of 3 runs" in text
    assert "deepspeed: median error 45.00%, largest 50.00%, of 2 runs" in text
    assert "accelerate: median error 100.00%, largest 100.00%, of 1 runs" in text
    assert is_met


def test_an_error_that_is_not_ten_times_smaller_is_told() -> None:
    assert not estimates.memory_text([peak(1010, 1090), peak(1010, 1090, 2000)])[1]


def test_both_parts_have_configurations_that_differ() -> None:
    for trials in estimates.timed_trials().values():
        assert len({trial.trial_id for trial in trials}) == len(trials) > 10
        assert {trial.verify.mode for trial in trials} == {"off"}
