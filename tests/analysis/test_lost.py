"""A figure that head has lost, or that no change of code explains, is no silent pass."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.errors import ExitCode
from zbench.record.record import Record
from zbench.report.exports import texts

from .synthetic import record, trial
from .test_compare import EVEN, compared


def with_timing(item: Record, **changes: Any) -> Record:
    assert item.timing is not None
    return replace(item, timing=replace(item.timing, **changes))


def with_memory(item: Record, **changes: Any) -> Record:
    assert item.memory is not None
    return replace(item, memory=replace(item.memory, **changes))


@pytest.mark.parametrize(
    ("change", "answer", "reason"),
    [
        (lambda item: replace(item, traffic={}), "unchecked", "traffic: 3.81 MiB -> 0 B"),
        (
            lambda item: with_memory(item, peak_rss_bytes=150_000_000),
            "regression",
            "resident memory: 2.86 MiB",
        ),
        (
            lambda item: with_timing(item, tokens_per_s=item.timing.tokens_per_s / 10),
            "unchecked",
            "tokens or samples a step: 1000 -> 100",
        ),
    ],
    ids=["no traffic", "50 times the resident set", "a tenth of the rate"],
)
def test_what_no_change_of_code_explains_is_not_a_pass(change: Any, answer: str, reason: str) -> None:
    comparison = compared(trial(EVEN), [change(item) for item in trial(EVEN)])
    assert comparison.rows[0].answer == answer
    assert reason in "\n".join(texts.reasons(comparison.rows[0]))
    assert bool(comparison.exit_code) == (answer != "pass")


def test_repeats_that_head_lost_are_not_a_pass() -> None:
    config = {"engine": {"engine": "builtin"}, "run": {"steps": 3, "repeats": 5}}
    base = trial(EVEN[:5], config=config)
    comparison = compared(base, base[:3])
    assert (comparison.rows[0].lost_repeats, bool(comparison.exit_code)) == (2, True)
    assert "head lacks 2 of 5 repeats; resume its run" in texts.reasons(comparison.rows[0])
    fewer = trial(EVEN[:3], config=config | {"run": {"steps": 3, "repeats": 3}})
    assert compared(base, fewer).rows[0].lost_repeats == 0


def test_an_added_configuration_that_crashes_exits_6() -> None:
    crashed = record(axes={"zero_stage": 3}, outcome="crashed")
    comparison = compared(trial(EVEN), [*trial(EVEN), crashed])
    assert comparison.exit_code == ExitCode.TRIALS_FAILED
    assert "only in head: zero_stage=3 (crashed)" in texts.summary(comparison)
