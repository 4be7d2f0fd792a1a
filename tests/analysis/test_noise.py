"""The machine's noise: of a version against itself."""

import math

import pytest

from zbench.analysis.compare import Comparison
from zbench.analysis.measurement import PairedMeasurement, Plan
from zbench.analysis.noise import noise_report
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.analysis.trials import Source
from zbench.launch.samples import KeptSamples

from .synthetic import Machine, OneByOne


def compared_with_itself(machine: Machine, blocks: int = 12) -> Comparison:
    settings = Settings(thresholds=PAIRED_THRESHOLDS)
    source = Source("here")
    plan = Plan(blocks, blocks)
    samples = KeptSamples(OneByOne(machine), None, {})
    return PairedMeasurement(source, source, plan, settings, samples, lambda _: None).run()


def test_noise_is_that_of_the_machine() -> None:
    report = noise_report(compared_with_itself(Machine(), blocks=40))
    assert report.blocks == 40
    assert report.comparisons == 3
    assert report.alarms == 0
    assert report.noise == pytest.approx(0.01, rel=0.25), "two samples a side of 1 % each"
    assert report.margin < report.detectable


def test_an_alarm_is_counted() -> None:
    assert noise_report(compared_with_itself(Machine(factor=1.2))).alarms == 1


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    report = noise_report(compared_with_itself(Machine(outcome="crashed")))
    assert (report.blocks, report.comparisons) == (0, 0)
    assert math.isnan(report.noise)
    assert math.isnan(report.margin)
    assert math.isnan(report.drift)
