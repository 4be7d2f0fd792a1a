"""What is known of the noise between runs, and what few processes must exceed."""

import math

import pytest

from zbench.analysis.decision import Levels, Paired, RunNoise, Unpaired, claim_p, noise_of_runs
from zbench.analysis.statistics import pooled_spread

HALF = math.log(1.5)


def test_few_processes_must_exceed_eight_spreads_and_half() -> None:
    noisy = Unpaired((-0.1, 0.0, 0.1), (0.9, 1.0, 1.2))
    assert noisy.clear_margin(0.01) == pytest.approx(8 * pooled_spread(noisy.base, noisy.head))
    assert Unpaired((0.0, 0.001, 0.002), (1.0, 1.001, 1.002)).clear_margin(0.01) == HALF
    assert Unpaired((0.0,) * 5, (1.0,) * 5).clear_margin(0.01) == 0.0, "ranks can tell"
    assert Paired((0.1,) * 2).clear_margin(0.01) == 0.0


@pytest.mark.parametrize(("change", "p"), [(HALF, 1.0), (1.01 * HALF, 0.0)])
def test_few_processes_that_differ_by_exactly_half_do_not_exceed_it(change: float, p: float) -> None:
    evidence = Unpaired((0.0, 0.0), (change, change), RunNoise(0.0))
    assert claim_p(evidence, 0.0, Levels.single(0.01)) == p


@pytest.mark.parametrize(
    ("levels", "degrees"),
    [
        ([[0.0, 0.1] * 5], 9),
        ([[0.0, 0.1] * 4, [1.0, 1.1]], 8),
        ([[0.0, 0.1] * 4, [1.0], [2.0]], 7),
        ([[0.0, 0.1] * 4, [1.0]], None),
        ([[float(level)] for level in range(12)], None),
    ],
)
def test_the_noise_of_ten_runs_or_more_has_a_degree_less_for_each_level(
    levels: list[list[float]], degrees: int | None
) -> None:
    found = noise_of_runs(levels)
    assert (found and found.degrees) == degrees


def test_a_history_stands_in_for_the_spread_that_one_process_cannot_show() -> None:
    found = Unpaired((0.0,), (0.1,), RunNoise(0.05, 11)).estimate()
    assert (found.degrees, found.n_base, found.n_head) == (11, 1, 1)
    assert found.standard_error == pytest.approx(0.05 * math.sqrt(2))


@pytest.mark.parametrize("noise", [None, RunNoise(0.01), RunNoise(0.01, 11), RunNoise(0.0001, 11)])
def test_stored_runs_are_not_paired(noise: RunNoise | None) -> None:
    assert not Unpaired((0.0, 0.1), (0.1, 0.2), noise).estimate().paired
    assert not Unpaired((0.0,), (0.1,), noise).estimate().paired
    assert Paired((0.0,)).estimate().paired
