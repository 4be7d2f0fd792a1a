"""Boundaries of looking several times, held against published tables."""

import pytest
from scipy.stats import norm

from zbench.analysis.group_sequential import chance_of_crossing, constant_level, nominal_levels, spent
from zbench.analysis.ranking import level_of_looks

OBRIEN_FLEMING = [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]
"""Five equal looks, one-sided 0.025, spending of the O'Brien-Fleming type (Jennison and Turnbull, 2000)."""
POCOCK = {2: 2.178, 3: 2.289, 5: 2.413, 10: 2.555}
"""The constant boundary of so many equal looks, one-sided 0.025 (Pocock, 1977; same book, table 2.1)."""


def test_levels_are_those_of_the_table() -> None:
    assert [-norm.ppf(level) for level in nominal_levels((1, 2, 3, 4, 5), 0.025)] == pytest.approx(
        OBRIEN_FLEMING, abs=0.003
    )


def test_looks_at_multiples_have_the_same_levels() -> None:
    assert nominal_levels((8, 16, 24), 0.01) == pytest.approx(nominal_levels((1, 2, 3), 0.01), rel=0.01)


@pytest.mark.parametrize("looks", POCOCK)
def test_the_chance_of_passing_a_constant_level_is_that_of_the_table(looks: int) -> None:
    level = float(norm.sf(POCOCK[looks]))
    assert chance_of_crossing(range(1, looks + 1), level) == pytest.approx(0.025, rel=0.01)


def test_all_of_alpha_is_spent_at_the_end_and_hardly_any_at_the_beginning() -> None:
    assert spent(0.01, 1.0) == pytest.approx(0.01)
    assert spent(0.01, 0.25) < 1e-6


def test_a_sweep_that_looks_once_has_the_whole_level() -> None:
    for config in ({}, {"run": None}, {"run": {"max_repeats": 20}}, {"run": {"separate": None}}):
        assert level_of_looks(config, 0.01) == 0.01
    assert level_of_looks({"run": {"separate": 0.05, "max_repeats": 20}}, 0.01) == constant_level(3, 20, 0.01)
    for few in (None, 1, 3):
        run = {"separate": 0.05, "max_repeats": few}
        assert level_of_looks({"run": run}, 0.01) == constant_level(3, 3, 0.01)
