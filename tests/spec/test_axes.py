"""Axes as a file writes them: ranges, conditions and values; each mistake is told where it stands."""

from typing import Any

import pytest

from zbench.spec.axes import Axis, ValueRange, resolve_axes
from zbench.spec.problems import ProblemsError
from zbench.spec.sweep import SweepSpec


def resolved(key: str, axis: Any, **earlier: Any) -> Axis:
    """Return an axis that stands below `earlier` ones."""
    sweep = {"search": {"method": "tpe"}, "axes": earlier | {key: axis}}
    return resolve_axes(SweepSpec.model_validate(sweep))[-1]


def refused(key: str, axis: Any, **earlier: Any) -> str:
    with pytest.raises(ProblemsError) as error:
        resolved(key, axis, **earlier)
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "axis", "expected"),
    [
        ("lr", {"low": 1e-5, "high": 1e-2, "log": True}, ValueRange(1e-5, 1e-2, log=True)),
        ("reduce_bucket_size", {"low": "1e4", "high": "10M"}, ValueRange(10**4, 10**7, integer=True)),
        ("options.dropout", {"low": 0, "high": 0.5}, ValueRange(0, 0.5, integer=False)),
    ],
)
def test_a_range_is_read_as_it_is_written(key: str, axis: dict[str, Any], expected: ValueRange) -> None:
    assert resolved(key, axis).range == expected


@pytest.mark.parametrize(
    ("key", "axis", "message"),
    [
        ("lr", {"low": 1, "high": 1}, "axes.lr: expected low below high, got 1.0 and 1.0"),
        ("lr", {"low": 0, "high": 1, "log": True}, "lr.low: a logarithmic range begins above 0, got 0."),
        ("dtype", {"low": "bfloat16", "high": "float32"}, "axes.dtype: this key is not a number"),
    ],
)
def test_a_range_that_holds_nothing_is_refused(key: str, axis: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"axes|range") as error:
        resolved(key, axis)
    assert message in str(error.value)


def test_a_condition_names_values_that_the_earlier_axis_has() -> None:
    axis = {"values": ["none", "cpu"], "when": {"zero_stage": [1, 2]}}
    assert resolved("offload_optimizer", axis, zero_stage=[0, 1, 2]).when == {"zero_stage": (1, 2)}
    assert refused("offload_optimizer", axis, zero_stage=[0, 1]) == (
        "axes.offload_optimizer.when.zero_stage: 2 is not a value of that axis; it has [0, 1]"
    )
