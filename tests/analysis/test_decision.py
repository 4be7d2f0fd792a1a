"""The answers, their evidence, and the number of blocks that they need; a decision stays."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from zbench.analysis import decision
from zbench.analysis.decision import Decision
from zbench.analysis.evidence import Evidence, of_blocks, of_runs
from zbench.analysis.measurement import Plan
from zbench.analysis.ratios import Contrast
from zbench.analysis.reasons import LEAST

from .synthetic import pairs

MARGIN = math.log1p(0.02)
ALPHA = 0.01


def paired(values: Sequence[float]) -> Evidence:
    """Return the evidence of pairs that differ by these logarithms, one a block."""
    return of_blocks(pairs(values))


def one(evidence: Evidence, level: float = ALPHA, margin: float = MARGIN) -> Decision:
    return decision.decide({"x": (evidence, margin)}, level)["x"]


def around(centre: float, n: int, spread: float = 0.005) -> tuple[float, ...]:
    return tuple(centre + spread * (-1) ** i * (1 + i / n) for i in range(n))


@pytest.mark.parametrize(
    ("centre", "n", "answer"),
    [
        (0.0, 12, "pass"),
        (0.08, 12, "regression"),
        (MARGIN, 12, "inconclusive"),
        (-0.2, 12, "pass"),
    ],
)
def test_three_answers(centre: float, n: int, answer: str) -> None:
    assert one(paired(around(centre, n))).answer == answer


@pytest.mark.parametrize(
    ("change", "spread", "answer"),
    [
        (0.1, 0.003, "regression"),
        (0.1, 0.2, "inconclusive"),
        (0.01, 0.003, "inconclusive"),
        (-0.03, 0.003, "pass"),
    ],
)
def test_three_processes_a_side_show_a_change_beyond_their_noise(
    change: float, spread: float, answer: str
) -> None:
    decision = one(of_runs(around(0.0, 3, spread), around(change, 3, spread)))
    assert decision.answer == answer
    assert bool(decision.reason) == (answer == "inconclusive")


@pytest.mark.parametrize("change", [0.019, 0.08])
def test_faster_needs_all_that_slower_needs(change: float) -> None:
    slower, faster = one(paired(around(change, 12))), one(paired(around(-change, 12)))
    assert faster.faster == (slower.answer == "regression")


def test_alarms_share_alpha_over_the_family_and_passes_do_not() -> None:
    alarm = paired(around(0.045, 8, 0.012))
    assert one(alarm).answer == "regression"
    family = {"alarm": (alarm, MARGIN)} | {str(i): (paired(around(0.0, 8)), MARGIN) for i in range(9)}
    decisions = decision.decide(family, 0.01)
    assert decisions["alarm"].answer == "suspected"
    assert decisions["alarm"].p_value == pytest.approx(10 * one(alarm).p_value)
    assert all(decisions[str(i)].answer == "pass" for i in range(9))


def test_needed_number_settles_the_question_four_times_in_five() -> None:
    values = around(MARGIN + 0.01, 8, spread=0.01)
    decision = one(paired(values))
    assert decision.answer == "suspected"
    assert decision.needed is not None
    assert 8 < decision.needed < 40
    assert f"about {decision.needed} blocks would decide" in decision.reason
    rng = np.random.default_rng(2)
    centre = decision.log_ratio
    spread = float(np.std(values, ddof=1))
    fresh = [paired(rng.normal(centre, spread, decision.needed)) for _ in range(300)]
    assert 0.75 <= sum(one(sample).answer == "regression" for sample in fresh) / 300 <= 0.87


def test_a_decision_stays_and_an_alarm_counts_in_the_family() -> None:
    levels = Plan(8, 12).levels(0.01)
    assert levels[8] < levels[12] < 0.01
    first = decision.decide(
        {"a": (paired(around(0.2, 8)), MARGIN), "b": (paired(around(0.02, 8)), MARGIN)}, levels[8]
    )
    assert [one.answer for one in first.values()] == ["regression", "inconclusive"]
    family = {"a": (paired(around(0.0, 12)), MARGIN), "b": (paired(around(0.0, 12)), MARGIN)}
    second = decision.decide(family, levels[12], first)
    assert second["a"] == first["a"]
    assert second["b"].answer == "pass"


def estimated(log_ratio: float) -> Evidence:
    return Evidence(Contrast(log_ratio, 0.01, 20), 12, 12, paired=True)


@pytest.mark.parametrize(
    ("low", "high", "interval"),
    [
        (-1.0, math.log(10), "-63.2% to +900.0%"),
        (-1.0, math.log(10.5), "within more than a factor of 10"),
    ],
)
def test_an_interval_beyond_a_factor_of_ten_is_told_so(low: float, high: float, interval: str) -> None:
    told = str(replace(one(estimated(0.0)), low=low, high=high))
    assert told.startswith(f"+0.0% ({interval}), ")


def test_one_block_or_process_says_how_many_are_needed() -> None:
    block, process = one(paired((0.1,))), one(of_runs((0.0,), (0.1,)))
    assert block.reason == f"about {LEAST} blocks would decide"
    assert (
        process.reason
        == f"about {LEAST} processes a side would decide: zbench sweep --resume RUN --repeats {LEAST}"
    )
    assert (block.paired, process.paired) == (True, False)
