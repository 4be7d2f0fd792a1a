"""Claims at exactly their levels, what a given estimate decides, and how many samples would decide."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import t

from zbench.analysis import decision
from zbench.analysis.decision import Decision, Evidence, Levels, Paired, RunNoise, Unpaired, claim_p, needed_n
from zbench.analysis.statistics import RatioEstimate, minimal_repeats, paired_estimate, unpaired_estimate

MARGIN = math.log1p(0.02)
LESS = 1 - 1e-9
ALPHA = 0.01
LEVELS = Levels.single(ALPHA)


@dataclass(frozen=True)
class Estimated:
    """Evidence whose estimate is given, and with which every exact test agrees."""

    found: RatioEstimate

    def estimate(self) -> RatioEstimate:
        return self.found

    def exact_p(self, margin: float) -> float:
        return 0.0

    def clear_margin(self, alpha: float) -> float:
        return 0.0

    def reversed(self) -> "Estimated":
        return Estimated(replace(self.found, log_ratio=-self.found.log_ratio))


def estimated(log_ratio: float) -> RatioEstimate:
    return RatioEstimate(log_ratio, 0.01, 20, 12, 12, paired=True)


def one(evidence: Evidence, levels: Levels = LEVELS, margin: float = MARGIN) -> Decision:
    return decision.decide({"x": (evidence, margin)}, levels)["x"]


@pytest.mark.parametrize(("share", "answer"), [(1.0, "regression"), (LESS, "suspected")])
def test_an_alarm_at_exactly_its_level_is_one(share: float, answer: str) -> None:
    found = estimated(0.05)
    levels = Levels(share * found.p_above(MARGIN), 0.01, 0.01)
    assert one(Estimated(found), levels).answer == answer


@pytest.mark.parametrize(("share", "answer"), [(1.0, "pass"), (LESS, "inconclusive")])
def test_an_interval_that_ends_at_the_margin_passes(share: float, answer: str) -> None:
    found = estimated(0.0)
    margin = share * found.interval(0.01)[1]
    assert one(Estimated(found), LEVELS, margin).answer == answer


@pytest.mark.parametrize(("share", "answer"), [(1.0, "suspected"), (LESS, "inconclusive")])
def test_a_difference_at_exactly_the_level_is_suspected(share: float, answer: str) -> None:
    found = estimated(0.05)
    levels = Levels(share * found.p_any(), 0.01, 0.01)
    assert one(Estimated(found), levels).answer == answer


def test_a_difference_of_exactly_the_margin_is_not_suspected() -> None:
    assert one(Estimated(estimated(0.05)), LEVELS, margin=0.05).answer == "inconclusive"
    assert one(Estimated(estimated(0.051)), LEVELS, margin=0.05).answer == "suspected"


@pytest.mark.parametrize(("share", "faster"), [(1.0, True), (LESS, False)])
def test_faster_at_exactly_its_level_is_claimed(share: float, faster: bool) -> None:
    levels = Levels(share * estimated(0.05).p_above(MARGIN), 0.01, 0.01)
    found = one(Estimated(estimated(-0.05)), levels)
    assert (found.answer, found.faster) == ("pass", faster)


def test_the_exact_test_must_agree_at_exactly_the_level_too() -> None:
    blocks = Paired((0.5, 0.51, 0.52, 0.5, 0.49, 0.5))
    p = blocks.estimate().p_above(MARGIN)
    assert claim_p(blocks, MARGIN, Levels(p, p, 0.01)) == 1.0, "6 blocks reach 1/64"
    assert claim_p(blocks, MARGIN, Levels(p, p, 1 / 64)) == p
    assert claim_p(blocks, MARGIN, Levels(p / 2, p, 0.01)) == p, "no claim, and so the figure itself"


def test_an_alarm_of_an_earlier_look_costs_the_others_nothing() -> None:
    alarm, quiet, other = Estimated(estimated(0.2)), Estimated(estimated(0.0)), Estimated(estimated(0.05))
    levels = Levels(1.5 * estimated(0.05).p_above(MARGIN), 0.01, 0.01)
    before = decision.decide({"a": (alarm, MARGIN)}, LEVELS)
    family = {"a": (quiet, MARGIN), "b": (other, MARGIN)}
    assert decision.decide(family, levels, before)["b"].answer == "regression"
    assert decision.decide(family, levels)["b"].answer == "suspected"


def test_what_is_detectable_of_a_family_is_what_is_at_its_share_of_alpha() -> None:
    evidence = Estimated(estimated(0.0))
    family = {str(i): (evidence, MARGIN) for i in range(10)}
    found = decision.decide(family, LEVELS)["0"].detectable
    assert found == one(evidence, Levels.single(0.001)).detectable
    assert found != one(evidence, LEVELS).detectable


def test_what_is_detectable_lies_beyond_what_unknown_noise_between_runs_may_be() -> None:
    base, head = (0.0, 0.01, 0.02), (0.01, 0.0, 0.02)
    known = one(Unpaired(base, head, RunNoise(0.0)), LEVELS).detectable
    unknown = one(Unpaired(base, head), LEVELS).detectable
    assert known is not None
    assert unknown == pytest.approx(known + math.log(1.5))


def test_one_block_shows_nothing_that_could_be_detected_and_two_do() -> None:
    assert one(Paired((0.1,)), LEVELS).detectable is None
    assert one(Paired((0.1, 0.2)), LEVELS).detectable is not None


@pytest.mark.parametrize(
    ("floor", "says"), [(0.005, "too near the margin"), (0.00501, "noise between runs hides it")]
)
def test_the_noise_between_runs_is_blamed_where_it_is_more_than_half_of_the_error(
    floor: float, says: str
) -> None:
    found = RatioEstimate(MARGIN, 0.01, 20, 12, 12, paired=False, floor=floor)
    assert says in one(Estimated(found), LEVELS).reason


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
    spread, values = 0.03, spread_out(5, 0.03)
    found = unpaired_estimate(values, [x + effect for x in values], noise)

    def narrow(n: int) -> bool:
        error = math.sqrt(2) * math.hypot(spread / math.sqrt(n), noise)
        return quantiles(2 * n - 2) * error <= effect - MARGIN

    expected = next(n for n in range(minimal_repeats(ALPHA), 1000) if narrow(n))
    assert needed_n(found, MARGIN, LEVELS, 1) == expected


@pytest.mark.parametrize("effect", [0.035, 0.06, -0.02])
def test_blocks_of_which_each_adds_one_degree_of_freedom(effect: float) -> None:
    found = paired_estimate([x + effect for x in spread_out(8, 0.03)])
    expected = next(
        n
        for n in range(7, 1000)
        if quantiles(n - 1) * 0.03 / math.sqrt(n) <= abs(effect - MARGIN) * (1 + 1e-9)
    )
    assert needed_n(found, MARGIN, LEVELS, 1) == expected


def test_two_blocks_show_a_spread_and_one_does_not() -> None:
    noisy = needed_n(paired_estimate([0.0, 0.1]), MARGIN, LEVELS, 1)
    assert noisy is not None
    assert noisy > 7
    assert needed_n(paired_estimate([0.1]), MARGIN, LEVELS, 1) == 7


def test_one_process_a_side_shows_no_spread_whatever_a_history_says() -> None:
    found = Unpaired((0.0,), (0.05,), RunNoise(0.05, 11)).estimate()
    assert needed_n(found, MARGIN, LEVELS, 1) == minimal_repeats(ALPHA)


def test_an_alarm_of_a_family_needs_more_and_a_pass_does_not() -> None:
    slower, same = (paired_estimate([x + effect for x in spread_out(8, 0.03)]) for effect in (0.05, 0.0))
    strict = Levels.single(ALPHA / 10)
    assert needed_n(slower, MARGIN, LEVELS, 10) == needed_n(slower, MARGIN, strict, 1)
    assert needed_n(same, MARGIN, LEVELS, 10) == needed_n(same, MARGIN, LEVELS, 1)
    assert needed_n(same, MARGIN, LEVELS, 1) != needed_n(same, MARGIN, strict, 1)


@pytest.mark.parametrize(("would", "needed"), [(1000, 1000), (1001, None)])
def test_more_than_a_thousand_are_not_asked_for(would: int, needed: int | None) -> None:
    distance = quantiles(would - 1) * 0.1 / math.sqrt(would) * (1 + 1e-9)
    found = RatioEstimate(MARGIN + distance, 0.1 / math.sqrt(10), 9, 10, 10, paired=True)
    assert needed_n(found, MARGIN, LEVELS, 1) == needed


def test_no_number_tells_what_unknown_noise_between_runs_may_hide() -> None:
    values = spread_out(9, 0.003)
    found = one(Unpaired(values, tuple(x + 0.3 for x in values)))
    assert (found.answer, found.needed) == ("suspected", None)


def test_what_three_processes_cannot_reach_names_the_number_that_decides() -> None:
    values = spread_out(3, 0.1)
    found = one(Unpaired(values, tuple(x + 0.1 for x in values), RunNoise(0.0)))
    assert found.needed is not None
    assert found.needed > 5
    assert found.reason.endswith(f"--repeats {found.needed}")
    at_the_margin = one(Unpaired(values, values, RunNoise(0.0)), LEVELS, margin=0.0)
    assert at_the_margin.needed is None
    assert at_the_margin.reason.endswith("at least 5 are needed: zbench sweep --resume RUN --repeats 5")


def test_one_of_each_says_how_many_are_needed_and_of_what() -> None:
    block, process = one(Paired((0.1,))), one(Unpaired((0.0,), (0.1,), RunNoise(0.0)))
    assert block.reason == "1 blocks cannot reach alpha 0.01; at least 7 are needed"
    assert process.reason.startswith("1 processes a side cannot reach alpha 0.01; at least 5 are needed")
    assert (block.paired, process.paired) == (True, False)
