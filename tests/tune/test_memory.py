"""What the simulation says beside what was measured."""

from dataclasses import replace

import pytest

from tests.making import make_trial
from zbench.estimate.result import Estimate, NotSimulated
from zbench.record.lines import decode_line, encode
from zbench.record.record import MemoryPeaks, Record
from zbench.tune.memory import too_large, with_simulated

TRIAL = make_trial({"zero_stage": 1})
MEASURED = Record("", TRIAL.trial_id, 0, {}, TRIAL.config(), "ok", memory=MemoryPeaks(1000, 0, 0))


def estimate(peak: int) -> Estimate:
    return Estimate(peak, 0, peak, {}, {}, "backward", [], {}, None, 0.0)


@pytest.mark.parametrize(
    ("peak", "told"),
    [
        (1000, []),
        (1009, []),
        (991, []),
        (1011, ["1.1% more than"]),
        (900, ["10.0% less than"]),
        (1500, ["50.0% more than"]),
    ],
)
def test_a_record_says_by_how_much_the_simulation_differs(peak: int, told: list[str]) -> None:
    record = with_simulated(MEASURED, lambda _: estimate(peak), TRIAL)
    assert record.simulated == {"peak_device_bytes": peak}
    assert len(record.warnings) == len(told)
    assert all(text in warning for text, warning in zip(told, record.warnings, strict=True))
    assert decode_line(encode(record)) == record


@pytest.mark.parametrize(
    ("device", "peak", "fits"),
    [("cpu", 1000, True), ("cpu", 1001, False), ("cuda", 1100, True), ("cuda", 1101, False)],
)
def test_beside_a_gpu_a_trial_must_be_a_tenth_above_the_limit_to_be_left_out(
    device: str, peak: int, fits: bool
) -> None:
    trial = make_trial({"zero_stage": 1}, device=device)
    assert (too_large(lambda _: estimate(peak), trial, 1000) is None) == fits


def test_a_trial_that_is_left_out_is_told_with_what_it_needs() -> None:
    told = "needs 1001 B by the simulation, the limit is 1000 B"
    assert too_large(lambda _: estimate(1001), make_trial(device="cpu"), 1000) == told


def test_what_is_not_simulated_may_fit() -> None:
    assert too_large(lambda _: NotSimulated("compiled"), TRIAL, 1) is None


def test_without_a_measurement_there_is_no_difference() -> None:
    record = with_simulated(replace(MEASURED, outcome="oom", memory=None), lambda _: estimate(5), TRIAL)
    assert (record.simulated, record.warnings) == ({"peak_device_bytes": 5}, [])


def test_what_is_not_simulated_leaves_the_record_alone() -> None:
    assert with_simulated(MEASURED, lambda _: NotSimulated("compiled"), TRIAL) == MEASURED
