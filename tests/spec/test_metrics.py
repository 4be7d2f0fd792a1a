import math

import pytest

from tests.making import make_record
from zbench.spec.metrics import METRICS, Constraint
from zbench.spec.sweep import ObjectiveSpec


@pytest.mark.parametrize(
    ("metric", "text", "holding", "failing"),
    [
        ("peak_device_bytes", "<= 2Gi", 2 << 30, (2 << 30) + 1),
        ("median_step_s", "<90ms", 0.08, 0.09),
        ("tokens_per_s", "> 5", 5.1, 5),
        ("error_ratio", ">= 1", 1.0, 0.5),
        ("verdict", ">= equivalent", "identical", "drifted"),
        ("verdict", "== identical", "identical", "equivalent"),
    ],
)
def test_constraints_are_read_in_the_metric_s_unit(
    metric: str, text: str, holding: object, failing: object
) -> None:
    constraint = Constraint.parse(metric, text)
    assert constraint.holds(holding)  # type: ignore[arg-type]
    assert constraint.violation(holding) <= 0  # type: ignore[arg-type]
    assert not constraint.holds(failing)  # type: ignore[arg-type]
    assert constraint.violation(failing) >= 0  # type: ignore[arg-type]


def test_what_is_missing_or_no_number_is_infeasible() -> None:
    constraint = Constraint.parse("error_ratio", "<= 4")
    assert constraint.violation(None) == math.inf
    assert constraint.violation(math.nan) == math.inf
    assert not constraint.holds(None)


@pytest.mark.parametrize(
    ("metric", "text"), [("verdict", ">= good"), ("tflops", "<= much"), ("tflops", "2"), ("x", "<= 1")]
)
def test_bounds_that_mean_nothing_are_refused(metric: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown metric"):
        Constraint.parse(metric, text)


def test_metrics_are_found_in_a_record() -> None:
    record = make_record(rate=5.0, memory=None, verdict="drifted")
    assert METRICS["tokens_per_s"].read(record) == 5.0
    assert METRICS["peak_device_bytes"].read(record) is None
    assert METRICS["verdict"].read(record) == "drifted"
    assert str(Constraint.parse("peak_device_bytes", "<=2Gi")) == "peak_device_bytes <= 2 GiB"


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("tokens_per_s", 999.94, "999.9"),
        ("tokens_per_s", 1000, "1,000"),
        ("tokens_per_s", 12345.6, "12,346"),
        ("tokens_per_s", 1e15, "1e+15"),
        ("tflops", -2000.0, "-2,000"),
        ("median_step_s", 0.0846, "84.6 ms"),
        ("error_ratio", 0.5, "0.5"),
        ("peak_rss_bytes", 1 << 30, "1 GiB"),
        ("verdict", "drifted", "drifted"),
        ("verdict", None, "-"),
    ],
)
def test_a_figure_is_written_in_its_unit(metric: str, value: float | str | None, text: str) -> None:
    assert METRICS[metric].format(value) == text


def test_goals_are_those_to_maximize_first() -> None:
    objective = ObjectiveSpec(minimize=["median_step_s"], maximize=["tokens_per_s", "tflops"])
    assert [(goal.metric, goal.direction) for goal in objective.goals] == [
        ("tokens_per_s", "maximize"), ("tflops", "maximize"), ("median_step_s", "minimize"),
    ]  # fmt: skip
