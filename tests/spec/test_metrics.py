import math
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.making import make_record
from zbench.analysis.ranking import rank
from zbench.errors import UsageError
from zbench.record.record import Record
from zbench.record.summary import obstacles, summarize
from zbench.report.exports.frame import documents
from zbench.spec import metrics
from zbench.spec.metrics import METRICS, Constraint, Metric
from zbench.spec.sweep import ObjectiveSpec


@pytest.mark.parametrize(
    ("metric", "text", "holding", "failing"),
    [
        ("peak_device_bytes", "<= 2Gi", 2 << 30, (2 << 30) + 1),
        ("median_step_s", "<90ms", 0.08, 0.09),
        ("tokens_per_s", "> 5", 5.1, 5),
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


@pytest.mark.parametrize(("metric", "text"), [("verdict", ">= good"), ("tflops", "2"), ("x", "<= 1")])
def test_bounds_that_mean_nothing_are_refused(metric: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown metric"):
        Constraint.parse(metric, text)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("tokens_per_s", 99.94, "99.9"),
        ("tokens_per_s", 99.99, "100"),
        ("tokens_per_s", 0.01234, "0.0123"),
        ("tokens_per_s", 12345.6, "12,346"),
        ("tflops", 3.0, "3 TFLOP/s"),
        ("tflops", 0.9996, "1,000 GFLOP/s"),
        ("tflops", 0.0114, "11.4 GFLOP/s"),
        ("median_step_s", 0.0846, "84.6 ms"),
        ("error_ratio", 0.1, "0.10"),
        ("error_ratio", math.inf, "inf"),
        ("max_abs_diff", 1.5e-07, "1.5e-07"),
        ("peak_rss_bytes", 1 << 30, "1 GiB"),
        ("verdict", None, "-"),
    ],
)
def test_a_figure_is_written_in_its_unit(metric: str, value: float | str | None, text: str) -> None:
    assert METRICS[metric].format(value) == text


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Return the metrics that are found as entry points, to be filled by the test."""
    plugs: dict[str, object] = {}
    before = dict(METRICS)

    def points(group: str) -> list[SimpleNamespace]:
        assert group == "zbench.metrics"
        return [SimpleNamespace(name=name, value="x:y", load=lambda it=it: it) for name, it in plugs.items()]

    monkeypatch.setattr(metrics, "entry_points", points)
    yield plugs
    for name in METRICS.keys() - before.keys():
        del METRICS[name]


def test_a_plugged_in_metric_ranks_constrains_and_is_exported(plugged: dict[str, object]) -> None:
    def cost(record: Record) -> float | None:
        return None if record.timing is None else 10 / (record.timing.tokens_per_s or 0.0)

    plugged["cost"] = Metric("cost", "share", "minimize", description="Cost of ten tokens.", compute=cost)
    plugged["broken"] = "no metric"
    goal = {"minimize": ["cost"], "subject_to": {"cost": "<= 1"}}
    objective = ObjectiveSpec.model_validate(goal)
    rates = {"a": 5.0, "b": 20.0, "c": 40.0}
    summaries = summarize(make_record(name, n, rate) for name, rate in rates.items() for n in range(3))
    assert [summary.number("cost") for summary in summaries] == [2.0, 0.5, 0.25]
    assert rank(summaries, objective).best == "c"
    assert obstacles(summaries[0], objective) == ["cost <= 1.00 (has 2.00)"]
    del plugged["broken"]
    assert documents(summaries, rank(summaries, objective))[0]["cost"] == 2.0


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("no metric", "expected a Metric with a `compute`, got x:y"),
        (Metric("mine", "s", "minimize", compute=lambda _: 1 / 0), "metric mine: ZeroDivisionError"),
    ],
)
def test_a_plug_in_that_fails_is_named(plugged: dict[str, object], metric: object, says: str) -> None:
    plugged["mine"] = metric
    with pytest.raises(UsageError, match=re.escape(says)):
        summarize([make_record()])[0].metric("mine")
    assert "mine" in plugged
    with pytest.raises(ValueError, match="unknown metric 'min'"):
        Constraint.parse("min", "<= 1")
