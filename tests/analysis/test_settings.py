"""The options of a comparison are read or refused."""

import pytest

from zbench.analysis.settings import (
    PAIRED_THRESHOLDS,
    STORED_THRESHOLDS,
    parse_fail_on,
    parse_thresholds,
)
from zbench.errors import UsageError


def test_thresholds_change_the_defaults_of_their_mode() -> None:
    assert parse_thresholds([], paired=True) == PAIRED_THRESHOLDS
    thresholds = parse_thresholds(["step_time=3%", "traffic_bytes = 0.5 %"])
    assert thresholds == {**STORED_THRESHOLDS, "step_time": 0.03, "traffic_bytes": 0.005}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_time=3", "such as 3%, got '3'; write 3%"),
        ("step_time=-3%", "got '-3%'"),
        ("step_time=2000%", "at most 1000%"),
        ("step_time", "expected METRIC=PERCENT"),
        ("steptime=3%", "did you mean 'step_time'"),
    ],
)
def test_thresholds_without_units_or_names_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_thresholds([text])


def test_fail_on() -> None:
    assert parse_fail_on("regression, missing") == {"regression", "missing"}
    assert parse_fail_on("none") == frozenset()
    with pytest.raises(UsageError, match="did you mean 'regression'"):
        parse_fail_on("regresion")
