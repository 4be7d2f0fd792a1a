"""The front is exactly what nothing dominates."""

from hypothesis import given
from hypothesis import strategies as st

from zbench.analysis.ranking import dominates, pareto_front

POINTS = st.dictionaries(
    st.integers(0, 100),
    st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float)),
    min_size=1,
    max_size=20,
)
UP_DOWN = ("maximize", "minimize")


@given(POINTS)
def test_nothing_on_the_front_is_dominated_and_all_else_is(values: dict[int, tuple[float, float]]) -> None:
    front = pareto_front(values, UP_DOWN)
    assert front
    for key, mine in values.items():
        beaten = any(dominates(other, mine, UP_DOWN) for other in values.values())
        assert beaten == (key not in front)


def test_the_best_of_the_first_objective_leads() -> None:
    values = {"slow": (1.0, 1.0), "fast": (9.0, 5.0), "bad": (0.5, 2.0), "twin": (9.0, 5.0)}
    assert pareto_front(values, UP_DOWN) == ["fast", "twin", "slow"]
    assert pareto_front(values, ("minimize", "maximize"))[0] == "bad"


def test_equal_values_do_not_dominate() -> None:
    assert not dominates((1.0, 1.0), (1.0, 1.0), UP_DOWN)
    assert dominates((1.0, 0.5), (1.0, 1.0), UP_DOWN)


def test_a_front_is_sorted_by_the_first_objective_and_by_no_other() -> None:
    values = {"a": (2.0, 5.0), "b": (1.0, 9.0), "c": (3.0, 4.0)}
    assert pareto_front(values, ("minimize", "minimize")) == ["b", "a", "c"]
