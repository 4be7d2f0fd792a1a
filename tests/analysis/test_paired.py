"""Blocks of a paired measurement cancel drift, and their control vetoes what moved."""

import math
from dataclasses import replace

import pytest

from zbench.analysis.measurement import Plan, SampleSource
from zbench.analysis.paired import (
    BASE_FIRST,
    Control,
    Side,
    block_difference,
    block_orders,
    block_replicates,
    control,
    replicates_in_turns,
)
from zbench.analysis.statistics import paired_estimate
from zbench.record.record import Record

from .machine import Machine, OneByOne
from .test_measurement import SETTINGS, InTurns, measured


@pytest.mark.parametrize("in_turns", [False, True])
def test_the_interval_is_that_of_the_blocks_and_of_what_lies_within_them(in_turns: bool) -> None:
    samples: SampleSource = InTurns(Machine(), noise=0.0) if in_turns else OneByOne(Machine())
    found = measured(samples, Plan(8, 8))
    row, orders = found.rows[0], block_orders(8, 0)
    seconds = {
        record.repeat: record.timing.median_step_s
        for side in (row.base, row.head)
        for record in side.ok
        if record.timing is not None
    }
    blocks = [[seconds[3 + 4 * block + i] for i in range(4)] for block in range(8)]
    differences = [block_difference(*block) for block in zip(orders, blocks, strict=True)]
    replicates = replicates_in_turns if in_turns else block_replicates
    within = [log for block in zip(orders, blocks, strict=True) for log in replicates(*block)]
    level = Plan(8, 8).levels(SETTINGS.alpha)[8].passing
    expected = paired_estimate(differences, within).interval(level)
    assert found.paired is not None
    assert found.paired.blocks[row.base.trial_id] == pytest.approx(differences)
    assert row.step_time is not None
    assert (row.step_time.low, row.step_time.high) == pytest.approx(expected)


def test_a_repeat_that_was_not_timed_is_in_no_block() -> None:
    machine = Machine()

    def take(side: Side) -> list[Record]:
        first, *others = machine(side)
        return [replace(first, timing=None), *others]

    found = measured(take, Plan(8, 8), said := [])
    assert "block 1 of 8" in said
    assert [row.step_time is None for row in found.rows] == [True, False, False]
    assert [len(row.base.ok) for row in found.rows] == [20] * 3


def test_replicates_in_turns_ignore_how_much_slower_head_is() -> None:
    seconds = [0.1, 0.12, 0.11, 0.13]
    slower = [factor * value for factor, value in zip((1, 2, 2, 1), seconds, strict=True)]
    assert replicates_in_turns(BASE_FIRST, slower) == pytest.approx(replicates_in_turns(BASE_FIRST, seconds))


@pytest.mark.parametrize("change", [1.0, -1.0])
def test_a_control_moved_where_its_noise_does_not_explain_it(change: float) -> None:
    """Of 3 configurations; 3.707 is the 99.5 % quantile of Student's t with 6 degrees of freedom."""
    explained = 3.7074 * 0.2 / math.sqrt(3)
    assert Control(0.2, 1.001 * change * explained, 6).moved(0.01)
    assert not Control(0.2, 0.999 * change * explained, 6).moved(0.01)


def test_a_control_that_moved_by_a_quarter_or_less_is_harmless() -> None:
    quarter = math.log(1.25)
    assert not Control(0.001, quarter, 6).moved(0.01)
    assert Control(0.001, 1.001 * quarter, 6).moved(0.01)
    assert not control({}, {}).moved(0.01)


def test_a_control_needs_two_samples_before_and_after() -> None:
    for before, after in (([0.1], [0.1, 0.2]), ([0.1, 0.2], [0.1])):
        assert math.isnan(control({"a": before}, {"a": after}).drift)
