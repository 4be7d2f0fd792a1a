"""The three answers, what they need, and the rule that an alarm is confirmed once."""

import math

import numpy as np
import pytest

from zbench.analysis import decision
from zbench.analysis.decision import Decision, Paired, Unpaired

MARGIN = math.log1p(0.02)


def one(evidence: decision.Evidence, alpha: float = 0.01, margin: float = MARGIN) -> Decision:
    return decision.decide({"x": (evidence, margin)}, alpha)["x"]


def around(centre: float, n: int, spread: float = 0.005) -> tuple[float, ...]:
    return tuple(centre + spread * (-1) ** i * (1 + i / n) for i in range(n))


@pytest.mark.parametrize(
    ("centre", "n", "answer"),
    [
        (0.0, 12, "pass"),
        (0.08, 12, "regression"),
        (MARGIN, 12, "inconclusive"),
        (-0.2, 12, "pass"),
        (0.08, 6, "inconclusive"),
    ],
)
def test_three_answers(centre: float, n: int, answer: str) -> None:
    assert one(Paired(around(centre, n))).answer == answer


def test_too_few_blocks_never_alarm_and_say_how_many_would() -> None:
    found = one(Paired(around(0.5, 6)))
    assert found.answer == "inconclusive"
    assert found.low > MARGIN, "the interval alone would have alarmed; the exact test cannot with 6 blocks"
    assert "6 blocks cannot reach alpha 0.01 over 1 comparisons; at least 7" in found.reason


def test_three_processes_a_side_never_alarm() -> None:
    found = one(Unpaired(around(0.0, 3), around(0.5, 3)))
    assert found.answer == "inconclusive"
    assert "3 processes a side cannot reach alpha" in found.reason


def test_an_alarm_shares_alpha_over_the_family_and_a_pass_does_not() -> None:
    alarm = Paired(around(0.08, 8))
    assert one(alarm).answer == "regression"
    family = {"alarm": (alarm, MARGIN)} | {str(i): (Paired(around(0.0, 8)), MARGIN) for i in range(9)}
    found = decision.decide(family, 0.01)
    assert found["alarm"].answer == "inconclusive"
    assert found["alarm"].p_value == pytest.approx(10 / 2**8)
    assert all(found[str(i)].answer == "pass" for i in range(9))


def test_needed_number_settles_the_question_four_times_in_five() -> None:
    values = around(MARGIN + 0.01, 8, spread=0.01)
    found = one(Paired(values))
    assert found.answer == "inconclusive"
    assert found.needed is not None
    assert 8 < found.needed < 40
    assert f"about {found.needed} blocks would decide" in found.reason
    rng = np.random.default_rng(2)
    centre, spread = found.log_ratio, float(np.std(values, ddof=1))
    fresh = [Paired(tuple(rng.normal(centre, spread, found.needed))) for _ in range(300)]
    assert 0.75 <= sum(one(sample).answer == "regression" for sample in fresh) / 300 <= 0.87


def test_an_effect_at_the_margin_is_beyond_any_number() -> None:
    found = one(Paired(around(MARGIN, 12)))
    assert found.needed is None
    assert "too near the margin" in found.reason


def test_noise_between_runs_points_to_the_paired_mode() -> None:
    quiet = Unpaired(around(0.0, 10, 0.001), around(0.0, 10, 0.001), run_noise=0.02)
    assert one(quiet).answer == "inconclusive"
    assert "--paired" in one(quiet).reason


def test_identical_samples_have_no_spread_and_still_decide() -> None:
    assert one(Paired((0.0,) * 8)).answer == "pass"
    assert one(Paired((0.1,) * 8)).answer == "regression"


def test_stopping_looks_at_widths_only() -> None:
    wide, narrow = Paired(around(0.0, 8, 0.05)), Paired(around(0.5, 8, 0.001))
    assert not decision.precise_enough([wide, narrow], 0.01, 0.02)
    assert decision.precise_enough([narrow], 0.01, 0.02)
    shifted = Paired(tuple(value + 1.0 for value in wide.differences))
    assert wide.estimate().half_width(0.01) == pytest.approx(shifted.estimate().half_width(0.01))


@pytest.mark.parametrize(
    ("centre", "answer", "words"),
    [
        (0.08, "regression", "confirmed on fresh data; first +8.3%"),
        (0.0, "pass", "alarm not confirmed on fresh data"),
        (MARGIN, "inconclusive", "alarm not confirmed on fresh data"),
    ],
)
def test_an_alarm_stands_only_if_fresh_data_raise_it_again(centre: float, answer: str, words: str) -> None:
    first = decision.decide(
        {"x": (Paired(around(0.08, 12)), MARGIN), "y": (Paired(around(0.0, 12)), MARGIN)}, 0.01
    )
    fresh = decision.decide({"x": (Paired(around(centre, 12)), MARGIN)}, 0.01)
    final = decision.confirmed(first, fresh)
    assert final["x"].answer == answer
    assert words in final["x"].reason
    assert final["y"] == first["y"]
