"""The machine's noise: of a version against itself."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from zbench.analysis.compare import Comparison, PairedData
from zbench.analysis.evidence import of_blocks
from zbench.analysis.measurement import PairedMeasurement, Plan
from zbench.analysis.noise import noise_report
from zbench.analysis.ratios import Contrast
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.analysis.trials import Source
from zbench.launch.samples import KeptSamples

from .machine import Machine, OneByOne
from .synthetic import blocks_of


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


@pytest.mark.parametrize("blocks", [2, 12])
@pytest.mark.parametrize("power", [0.95, 0.9])
def test_a_change_is_seen_as_often_as_stated(blocks: int, power: float) -> None:
    student = t(blocks - 1)
    expected = (student.isf(0.01) + student.ppf(power)) * 0.05 / math.sqrt(blocks)
    reach = Contrast(0.0, 0.05 / math.sqrt(blocks), blocks - 1).reach(0.01, power)
    assert reach == pytest.approx(expected)


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    report = noise_report(compared_with_itself(Machine(outcome="crashed")))
    assert (report.blocks, report.comparisons) == (0, 0)
    assert math.isnan(report.noise)
    assert math.isnan(report.margin)
    assert math.isnan(report.drift)


def test_a_report_rests_on_the_configurations_with_two_blocks_or_more() -> None:
    logs = np.random.default_rng(0).normal(0, 0.01, (40, 4))
    blocks = {"none": (), "one": blocks_of(logs[:1]), "two": blocks_of(logs[:2]), "all": blocks_of(logs)}
    data = PairedData(blocks, 0.1, exact_only=False)
    tally = noise_report(replace(compared_with_itself(Machine(), 8), paired=data))
    assert (tally.blocks, tally.comparisons, tally.drift) == (2, 2, 0.1)
    assert tally.noise == pytest.approx(0.01, rel=0.5)
    assert tally.margin / 0.005 == pytest.approx(round(tally.margin / 0.005)), "rounded up to half a percent"
    reaches = [of_blocks(blocks[name]).contrast.reach(0.01, 0.95) for name in ("two", "all")]
    assert any(0 <= tally.margin - math.expm1(reach) < 0.005 for reach in reaches)
