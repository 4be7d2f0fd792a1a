"""More repeats while the interval is wide, and no more than the budget."""

import math
import random

from zbench.launch.sweep import needs_another, relative_half_width


def test_half_width_is_that_of_the_t_interval():
    """n = 4, logs with standard deviation s: half width exp(3.182 s / 2) - 1 (t of 3 degrees at 97.5 %)."""
    logs = [-0.03, -0.01, 0.01, 0.03]
    s = math.sqrt(sum(x * x for x in logs) / 3)
    expected = math.expm1(3.182446 * s / 2)
    assert math.isclose(relative_half_width([math.exp(x) for x in logs]), expected, rel_tol=1e-6)


def test_unknown_spread_is_infinite():
    assert relative_half_width([1.0]) == math.inf


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(2000):
        medians = [0.1 * math.exp(rng.gauss(0, 0.03)) for _ in range(5)]
        center = math.exp(sum(map(math.log, medians)) / 5)
        covered += abs(math.log(center / 0.1)) <= math.log1p(relative_half_width(medians))
    assert 0.93 < covered / 2000 < 0.97


def test_repeats_go_on_until_tight_enough_or_the_budget_ends():
    tight, wide = [1.0, 1.001, 0.999, 1.0], [1.0, 1.2, 0.8, 1.1]
    assert not needs_another(tight, precision=0.02, max_repeats=20)
    assert needs_another(wide, precision=0.02, max_repeats=20)
    assert not needs_another(wide, precision=0.02, max_repeats=4)
    assert not needs_another(wide, precision=None, max_repeats=20)
    assert needs_another([1.0, 1.0], precision=0.02, max_repeats=20)
