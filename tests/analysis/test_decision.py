"""The answers, what they rest on and need, and that looking after every block keeps what was decided."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from zbench.analysis import decision
from zbench.analysis.decision import Decision
from zbench.analysis.evidence import RESIDUAL, Evidence, of_blocks, of_runs
from zbench.analysis.measurement import Plan
from zbench.analysis.ratios import Contrast
from zbench.analysis.reasons import LEAST, needed_n

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
        (0.5, 6, "regression"),
        (0.0, 8, "pass"),
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
def test_three_processes_a_side_show_what_is_beyond_their_noise_and_the_yardsticks(
    change: float, spread: float, answer: str
) -> None:
    decision = one(of_runs(around(0.0, 3, spread), around(change, 3, spread)))
    assert decision.answer == answer
    assert bool(decision.reason) == (answer == "inconclusive")


def test_what_lies_between_runs_is_in_the_error_however_many_repeats_there_are() -> None:
    runs = (0.0, 0.001) * 50, (0.03, 0.031) * 50
    assert of_runs(*runs).contrast.error == pytest.approx(math.sqrt(2) * RESIDUAL, rel=0.01)
    assert of_runs(*runs, 0.0).contrast.error < 0.001


@pytest.mark.parametrize("change", [0.0, 0.019, 0.05, 0.08])
def test_faster_needs_all_that_slower_needs(change: float) -> None:
    slower, faster = one(paired(around(change, 12))), one(paired(around(-change, 12)))
    assert faster.faster == (slower.answer == "regression")


def test_an_alarm_shares_alpha_over_the_family_and_a_pass_does_not() -> None:
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


def test_what_was_decided_stays_and_an_alarm_counts_in_the_family() -> None:
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


def test_it_says_what_would_have_been_seen() -> None:
    decision = one(paired(around(0.0, 16, 0.02)))
    assert decision.detectable is not None
    rng = np.random.default_rng(3)
    spread = float(np.std(around(0.0, 16, 0.02), ddof=1))
    fresh = [paired(rng.normal(decision.detectable, spread, 16)) for _ in range(300)]
    assert 0.84 <= sum(one(sample).answer == "regression" for sample in fresh) / 300 <= 0.96


def estimated(log_ratio: float) -> Evidence:
    return Evidence(Contrast(log_ratio, 0.01, 20), 12, 12, paired=True)


@pytest.mark.parametrize(
    ("low", "high", "interval"),
    [
        (-1.0, math.log(10), "-63.2% to +900.0%"),
        (-math.log(10), 1.0, "-90.0% to +171.8%"),
        (-1.0, math.log(10.5), "within more than a factor of 10"),
        (-math.log(10.5), 1.0, "within more than a factor of 10"),
    ],
)
def test_an_interval_beyond_a_factor_of_ten_is_told_as_that(low: float, high: float, interval: str) -> None:
    told = str(replace(one(estimated(0.0)), low=low, high=high))
    assert told.startswith(f"+0.0% ({interval}), ")


@pytest.mark.parametrize("doubt", [decision.doubted, decision.refused])
def test_a_doubted_or_refused_answer_is_no_gain(doubt: Callable[[Decision, str], Decision]) -> None:
    faster = one(estimated(-0.2))
    told = doubt(faster, "why")
    assert faster.faster
    assert (told.answer, told.faster, told.reason) == ("inconclusive", False, "why")


def test_an_alarm_of_an_earlier_look_costs_the_others_nothing() -> None:
    alarm, quiet, other = estimated(0.2), estimated(0.0), estimated(0.05)
    level = 1.5 * other.contrast.p_above(MARGIN)
    before = decision.decide({"a": (alarm, MARGIN)}, ALPHA)
    family = {"a": (quiet, MARGIN), "b": (other, MARGIN)}
    assert decision.decide(family, level, before)["b"].answer == "regression"
    assert decision.decide(family, level)["b"].answer == "suspected"


def test_what_is_detectable_of_a_family_is_what_is_at_its_share_of_alpha() -> None:
    evidence = estimated(0.0)
    family = {str(i): (evidence, MARGIN) for i in range(10)}
    detectable = decision.decide(family, ALPHA)["0"].detectable
    assert detectable == one(evidence, 0.001).detectable
    assert detectable != one(evidence).detectable


@pytest.mark.parametrize(
    ("floor", "says"), [(0.005, "too near the margin"), (0.00501, "noise between runs; use --paired")]
)
def test_the_noise_between_runs_is_blamed_where_it_is_more_than_half_of_the_error(
    floor: float, says: str
) -> None:
    evidence = Evidence(Contrast(MARGIN, 0.01, 20), 12, 12, paired=False, floor=floor)
    assert says in one(evidence).reason


def spread_out(n: int, spread: float) -> tuple[float, ...]:
    """Return values about 0 of this standard deviation."""
    values = np.arange(n) - (n - 1) / 2
    return tuple((values * spread / values.std(ddof=1)).tolist())


def quantiles(degrees: int, alpha: float = ALPHA) -> float:
    """Return how many standard errors from the margin an effect is called with power 0.8."""
    return float(t.isf(alpha, degrees) + t.ppf(0.8, degrees))


@pytest.mark.parametrize("noise", [0.0, 0.005])
@pytest.mark.parametrize("effect", [0.045, 0.06, 0.1])
def test_processes_a_side_with_the_noise_between_runs_that_more_of_them_do_not_narrow(
    effect: float, noise: float
) -> None:
    spread = 0.03
    values = spread_out(5, 0.03)
    evidence = of_runs(values, [x + effect for x in values], noise)

    def narrow(n: int) -> bool:
        error = math.sqrt(2) * math.hypot(spread / math.sqrt(n), noise)
        return quantiles(2 * n - 2) * error <= effect - MARGIN

    expected = next(n for n in range(LEAST, 1000) if narrow(n))
    assert needed_n(evidence, MARGIN, ALPHA, 1) == expected


def test_an_alarm_of_a_family_needs_more_and_a_pass_does_not() -> None:
    slower, same = (paired([x + effect for x in spread_out(8, 0.03)]) for effect in (0.05, 0.0))
    strict = ALPHA / 10
    assert needed_n(slower, MARGIN, ALPHA, 10) == needed_n(slower, MARGIN, strict, 1)
    assert needed_n(same, MARGIN, ALPHA, 10) == needed_n(same, MARGIN, ALPHA, 1)
    assert needed_n(same, MARGIN, ALPHA, 1) != needed_n(same, MARGIN, strict, 1)


@pytest.mark.parametrize(("would", "needed"), [(1000, 1000), (1001, None)])
def test_more_than_a_thousand_are_not_asked_for(would: int, needed: int | None) -> None:
    distance = quantiles(would - 1) * 0.1 / math.sqrt(would) * (1 + 1e-9)
    evidence = Evidence(Contrast(MARGIN + distance, 0.1 / math.sqrt(10), 9), 10, 10, paired=True)
    assert needed_n(evidence, MARGIN, ALPHA, 1) == needed


@pytest.mark.parametrize(("degrees", "base"), [(0, 5), (3, 1)])
def test_the_least_are_asked_for_where_a_side_shows_no_spread(degrees: int, base: int) -> None:
    evidence = Evidence(Contrast(MARGIN + 0.001, 0.05, degrees), base, 5, paired=False)
    assert needed_n(evidence, MARGIN, ALPHA, 1) == LEAST


def test_one_of_each_says_how_many_are_needed_and_of_what() -> None:
    block, process = one(paired((0.1,))), one(of_runs((0.0,), (0.1,)))
    assert block.reason == f"about {LEAST} blocks would decide"
    assert (
        process.reason
        == f"about {LEAST} processes a side would decide: zbench sweep --resume RUN --repeats {LEAST}"
    )
    assert (block.paired, process.paired) == (True, False)
