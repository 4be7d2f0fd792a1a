"""The interval covers, alarms are rare and slowdowns are found, under simulated machine noise."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from zbench.analysis import decision, paired
from zbench.analysis.decision import Decision, Paired, Unpaired
from zbench.analysis.statistics import paired_estimate, unpaired_estimate

from . import noise

MARGIN = math.log1p(0.02)
TRUE_SLOWDOWN = math.log1p(0.05)


def experiments(
    kind: noise.Noise, count: int, blocks: int, effect: float = 0.0, seed: int = 0
) -> Iterator[list[float]]:
    """Yield the block differences of whole paired measurements whose head is slower by `effect`."""
    rng = np.random.default_rng(seed)
    samples = kind(rng, count, 4 * blocks)
    for i, row in enumerate(samples):
        differences = []
        for order, logs in zip(paired.block_orders(blocks, seed + i), row.reshape(blocks, 4), strict=True):
            seconds = [
                math.exp(log + effect * (side == "head")) for side, log in zip(order, logs, strict=True)
            ]
            differences.append(paired.block_difference(order, seconds))
        yield differences


def coverage(kind: noise.Noise, count: int, blocks: int, effect: float = 0.03) -> float:
    """Return how often the nominal 95 % interval holds the true effect."""
    inside = 0
    for differences in experiments(kind, count, blocks, effect):
        low, high = paired_estimate(differences).interval(0.025)
        inside += low <= effect <= high
    return inside / count


@pytest.mark.parametrize("kind", noise.KINDS)
def test_interval_covers_93_to_97_percent(kind: str) -> None:
    assert 0.93 <= coverage(noise.KINDS[kind], 3000, blocks=12) <= 0.97


@pytest.mark.soak
@pytest.mark.parametrize("blocks", [8, 12, 24])
@pytest.mark.parametrize("kind", noise.KINDS)
def test_interval_covers_93_to_97_percent_at_length(kind: str, blocks: int) -> None:
    assert 0.93 <= coverage(noise.KINDS[kind], 50_000, blocks) <= 0.97


def test_without_blocks_drift_breaks_the_interval() -> None:
    """Why stored runs need `run_noise`: two runs one after the other on a drifting machine, by Welch."""
    rng = np.random.default_rng(1)
    naive, allowed, count, n = 0, 0, 2000, 6
    for row in noise.drifting(0.99)(rng, count, 2 * n):
        base, head = row[:n], row[n:]
        for run_noise in (0.0, 0.02):
            low, high = unpaired_estimate(base, head, run_noise).interval(0.025)
            naive += run_noise == 0 and low <= 0 <= high
            allowed += run_noise > 0 and low <= 0 <= high
    assert naive / count < 0.75
    assert allowed / count >= 0.95


def family_decisions(
    kind: noise.Noise, count: int, size: int, blocks: int, effect: float
) -> Iterator[dict[str, Decision]]:
    """Yield decided families of `size` comparisons; every comparison is slower by `effect`."""
    for start in range(count):
        rows = experiments(kind, size, blocks, effect, seed=1000 + start)
        yield decision.decide(
            {str(i): (Paired(tuple(row)), MARGIN) for i, row in enumerate(rows)}, alpha=0.01
        )


@pytest.mark.parametrize("kind", noise.KINDS)
def test_no_false_alarm_in_a_hundred_families(kind: str) -> None:
    """A/A: at most 1 % of families may alarm before confirmation; seeded, so this is a fact, not a chance."""
    families = family_decisions(noise.KINDS[kind], 100, size=6, blocks=12, effect=0.0)
    assert sum(any(d.answer == "regression" for d in family.values()) for family in families) <= 1


@pytest.mark.soak
@pytest.mark.parametrize("kind", noise.KINDS)
def test_alarms_at_the_margin_stay_within_alpha(kind: str) -> None:
    """The hardest honest case, a true change of exactly the margin: one family in a hundred may alarm."""
    families = family_decisions(noise.KINDS[kind], 5000, size=4, blocks=12, effect=MARGIN)
    alarms = sum(any(d.answer == "regression" for d in family.values()) for family in families)
    assert alarms / 5000 <= 0.014


def power(count: int, blocks: int = 12) -> float:
    """Return how often a true 5 % is called, and called again on fresh data, at a paired noise of 2 %."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(count):
        first, again = (
            decision.decide({"x": (Paired(tuple(rng.normal(TRUE_SLOWDOWN, 0.02, blocks))), MARGIN)}, 0.01)
            for _ in "12"
        )
        found += decision.confirmed(first, again)["x"].answer == "regression"
    return found / count


def test_five_percent_is_found_and_confirmed() -> None:
    assert power(600) >= 0.90


@pytest.mark.soak
def test_five_percent_is_found_and_confirmed_at_length() -> None:
    assert power(20_000) >= 0.90


def test_stopping_on_width_keeps_the_coverage() -> None:
    """Looking after every block and stopping once the interval is narrow must not bias where it lies."""
    rng = np.random.default_rng(5)
    inside, count, precision = 0, 2000, 0.015
    for _ in range(count):
        values = list(rng.normal(0.03, 0.02, 8))
        while len(values) < 30 and not decision.precise_enough([Paired(tuple(values))], 0.025, precision):
            values.append(float(rng.normal(0.03, 0.02)))
        low, high = paired_estimate(values).interval(0.025)
        inside += low <= 0.03 <= high
    assert 0.93 <= inside / count <= 0.97


def test_unpaired_power_and_level() -> None:
    """Six processes a side, quiet machine: 10 % is found, no difference is never called."""
    rng = np.random.default_rng(9)
    answers = {
        effect: [
            decision.decide(
                {
                    "x": (
                        Unpaired(tuple(rng.normal(0, 0.01, 6)), tuple(rng.normal(effect, 0.01, 6)), 0.01),
                        MARGIN,
                    )
                },
                0.01,
            )["x"].answer
            for _ in range(300)
        ]
        for effect in (0.0, 0.1)
    }
    assert answers[0.0].count("regression") == 0
    assert answers[0.1].count("regression") >= 285
