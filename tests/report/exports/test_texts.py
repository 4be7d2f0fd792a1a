"""What a comparison says of one configuration, and of the way in which it was measured."""

from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.synthetic import record, results, trial
from zbench.analysis.compare import PairedData, compare_runs
from zbench.analysis.rows import Row
from zbench.analysis.settings import Settings
from zbench.record.record import MemoryPeaks, Record
from zbench.report.exports import texts

from .test_formats import EVEN, comparison

FULL: dict[str, Any] = {"engine": {"zero_stage": 1}, "verify": {"mode": "full"}}


def compared(base: list[Record], head: list[Record]) -> Row:
    (row,) = compare_runs(results(base), results(head, "head"), Settings()).rows
    return row


def cells(base: list[Record], head: list[Record]) -> dict[str, str]:
    """Return what the table of a comparison says of its one row, by title."""
    table = texts.table(compare_runs(results(base), results(head, "head"), Settings()))
    (row,) = table.texts()
    return dict(zip(table.titles, row, strict=True))


@pytest.mark.parametrize(("verdict", "answer"), [("identical", "pass, faster"), ("wrong", "incorrect")])
def test_only_a_configuration_that_passes_is_called_faster(verdict: Any, answer: str) -> None:
    sides = trial(EVEN), trial([0.7 * step for step in EVEN], verdict=verdict)
    decision = compared(*sides).step_time
    assert decision is not None
    assert decision.faster
    assert cells(*sides)["answer"] == answer


def using(device: int | None, host: int | None) -> list[Record]:
    return [replace(record(), memory=MemoryPeaks(device, host, 3))]


@pytest.mark.parametrize(
    ("base", "head", "peak"),
    [
        (4096, None, "4 KiB -> none (unchecked)"),
        (None, 4096, "none -> 4 KiB (unchecked)"),
        (None, None, "2 KiB -> 1 KiB, -50.0 %"),
    ],
)
def test_without_device_memory_the_peak_is_the_hosts(base: int | None, head: int | None, peak: str) -> None:
    row = compared(using(base, 2048), using(head, 1024))
    assert cells(using(base, 2048), using(head, 1024))["peak memory"] == peak
    if "unchecked" not in peak:
        assert not any("host" in reason for reason in texts.reasons(row)), "it is told once"


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ("unchecked", "verify.mode is full, and nothing could be verified"),
        ("identical", "verdict fell from identical to unchecked"),
    ],
)
def test_a_verdict_that_head_lacks_is_lost_or_missing(verdict: Any, reason: str) -> None:
    row = compared(*(trial(EVEN, verdict=one, config=FULL) for one in (verdict, "unchecked")))
    assert texts.reasons(row) == [reason]


def failing(count: int, of: int) -> list[Record]:
    return [record(repeat=n, outcome="crashed" if n < count else "ok") for n in range(of)]


def test_more_frequent_failures_are_told_with_their_counts() -> None:
    lines = texts.reasons(compared(failing(1, 10), failing(9, 10)))
    assert lines[:2] == [
        "head ended in crashed: killed by signal 9",
        "head fails more often than base (base 1 of 10, head 9 of 10)",
    ]


def test_a_paired_measurement_is_described_by_its_drift() -> None:
    paired = PairedData({}, -0.034, exact_only=False)
    text = texts.method(replace(comparison(), paired=paired))
    assert text.startswith("Base and head were measured in pairs on this machine. ")
    assert "The threshold is a slowdown of 5 %" in text
    assert "the chance that one is called is at most 1 %. Intervals are at 98 %" in text
    assert text.endswith("base itself changed by -3.4 % meanwhile.")
    assert "base itself" not in texts.method(replace(comparison(), paired=replace(paired, drift=None)))


def test_a_comparison_without_timing_says_so() -> None:
    paired = PairedData({}, None, exact_only=True)
    assert "nothing was timed" in texts.method(replace(comparison(), paired=paired))


def test_stored_runs_are_described_by_their_yardstick() -> None:
    text = texts.method(comparison())
    assert "divided by each part of the machine's yardstick (fixed kernels that took turns with them)" in text
    assert "The threshold is a slowdown of 5 %" in text
