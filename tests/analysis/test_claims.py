"""Claims at exactly their levels, and what an estimate alone decides; the estimate is given."""

import math
from dataclasses import dataclass, replace

import pytest

from zbench.analysis import decision
from zbench.analysis.decision import Decision, Evidence, Levels, Paired, RunNoise, Unpaired, claim_p
from zbench.analysis.statistics import RatioEstimate

MARGIN = math.log1p(0.02)
LESS = 1 - 1e-9


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


def one(evidence: Evidence, levels: Levels, margin: float = MARGIN) -> Decision:
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
    assert one(Estimated(found), Levels.single(0.01), margin).answer == answer


@pytest.mark.parametrize(("share", "answer"), [(1.0, "suspected"), (LESS, "inconclusive")])
def test_a_difference_at_exactly_the_level_is_suspected(share: float, answer: str) -> None:
    found = estimated(0.05)
    levels = Levels(share * found.p_any(), 0.01, 0.01)
    assert one(Estimated(found), levels).answer == answer


def test_a_difference_of_exactly_the_margin_is_not_suspected() -> None:
    assert one(Estimated(estimated(0.05)), Levels.single(0.01), margin=0.05).answer == "inconclusive"
    assert one(Estimated(estimated(0.051)), Levels.single(0.01), margin=0.05).answer == "suspected"


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
    before = decision.decide({"a": (alarm, MARGIN)}, Levels.single(0.01))
    family = {"a": (quiet, MARGIN), "b": (other, MARGIN)}
    assert decision.decide(family, levels, before)["b"].answer == "regression"
    assert decision.decide(family, levels)["b"].answer == "suspected"


def test_what_is_detectable_of_a_family_is_what_is_at_its_share_of_alpha() -> None:
    evidence = Estimated(estimated(0.0))
    family = {str(i): (evidence, MARGIN) for i in range(10)}
    found = decision.decide(family, Levels.single(0.01))["0"].detectable
    assert found == one(evidence, Levels.single(0.001)).detectable
    assert found != one(evidence, Levels.single(0.01)).detectable


def test_what_is_detectable_lies_beyond_what_unknown_noise_between_runs_may_be() -> None:
    base, head = (0.0, 0.01, 0.02), (0.01, 0.0, 0.02)
    known = one(Unpaired(base, head, RunNoise(0.0)), Levels.single(0.01)).detectable
    unknown = one(Unpaired(base, head), Levels.single(0.01)).detectable
    assert known is not None
    assert unknown == pytest.approx(known + math.log(1.5))


def test_one_block_shows_nothing_that_could_be_detected_and_two_do() -> None:
    assert one(Paired((0.1,)), Levels.single(0.01)).detectable is None
    assert one(Paired((0.1, 0.2)), Levels.single(0.01)).detectable is not None


@pytest.mark.parametrize(
    ("floor", "says"), [(0.005, "too near the margin"), (0.00501, "noise between runs hides it")]
)
def test_the_noise_between_runs_is_blamed_where_it_is_more_than_half_of_the_error(
    floor: float, says: str
) -> None:
    found = RatioEstimate(MARGIN, 0.01, 20, 12, 12, paired=False, floor=floor)
    assert says in one(Estimated(found), Levels.single(0.01)).reason
