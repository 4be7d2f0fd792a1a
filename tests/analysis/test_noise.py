"""The machine's noise: of a version against itself."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from zbench.analysis.compare import Comparison, PairedData
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
    source, plan = Source("here"), Plan(blocks, blocks)
    samples = KeptSamples(OneByOne(machine), None, {})
    return PairedMeasurement(source, source, plan, settings, samples, lambda _: None).run()


def test_noise_is_that_of_the_machine() -> None:
    found = noise_report(compared_with_itself(Machine(), blocks=40))
    assert found.blocks == 40
    assert found.comparisons == 3
    assert found.alarms == 0
    assert found.noise == pytest.approx(0.01, rel=0.25), "two samples a side of 1 % each"
    assert found.margin < found.detectable


def test_an_alarm_is_counted() -> None:
    assert noise_report(compared_with_itself(Machine(factor=1.2))).alarms == 1


@pytest.mark.parametrize("blocks", [2, 12])
@pytest.mark.parametrize("power", [0.95, 0.9])
def test_a_change_is_seen_as_often_as_stated(blocks: int, power: float) -> None:
    student = t(blocks - 1)
    expected = (student.isf(0.01) + student.ppf(power)) * 0.05 / math.sqrt(blocks)
    found = Contrast(0.0, 0.05 / math.sqrt(blocks), blocks - 1).reach(0.01, power)
    assert found == pytest.approx(expected)


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    found = noise_report(compared_with_itself(Machine(outcome="crashed")))
    assert (found.blocks, found.comparisons) == (0, 0)
    assert math.isnan(found.noise)
    assert math.isnan(found.margin)
    assert math.isnan(found.drift)


def test_a_report_rests_on_the_configurations_with_two_blocks_or_more() -> None:
    logs = np.random.default_rng(0).normal(0, 0.01, (40, 4))
    blocks = {"none": (), "one": blocks_of(logs[:1]), "two": blocks_of(logs[:2]), "all": blocks_of(logs)}
    data = PairedData(blocks, 0.1, exact_only=False)
    found = noise_report(replace(compared_with_itself(Machine(), 8), paired=data))
    assert (found.blocks, found.comparisons, found.drift) == (2, 2, 0.1)
    assert found.noise == pytest.approx(0.01, rel=0.5)
    assert found.margin / 0.005 == pytest.approx(round(found.margin / 0.005)), "rounded up to half a percent"
