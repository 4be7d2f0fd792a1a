"""The metrics that rank and constrain trials: name, unit, direction and path in a Record.

A plug-in adds a metric by an entry point of the group `zbench.metrics`: a `Metric` with a `compute`.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

from zbench.errors import UsageError, nearest
from zbench.units import format_bytes, format_seconds, parse_bytes, parse_duration

Direction = Literal["maximize", "minimize"]
Unit = Literal["1/s", "TFLOP/s", "s", "bytes", "ratio", "share", "verdict"]
Operator = Literal["<=", ">=", "<", ">", "=="]
VerdictName = Literal["identical", "equivalent", "drifted", "wrong", "unchecked"]
VERDICTS: tuple[VerdictName, ...] = ("unchecked", "wrong", "drifted", "equivalent", "identical")
"""From worst to best."""
_ENDINGS = {"tflops": "FLOP/s", "_per_s": "/s", "_s": "", "_rss_bytes": " RSS", "_bytes": ""}
"""How a metric's name ends, and its title; values are written with their unit."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A value of a Record: at the attribute path `path`, or returned by `compute`; None if missing.

    better: None for a verdict. Over the repeats of a configuration, zbench takes the largest of bytes, ratios
    and worst_step_s, the worst verdict, and the median of all other metrics.
    """

    name: str
    unit: Unit
    better: Direction | None
    path: tuple[str, ...] = ()
    description: str = ""
    compute: Callable[[Any], float | None] | None = None

    @property
    def title(self) -> str:
        """Return what tables call it: `median step` for median_step_s, `tokens/s` for tokens_per_s."""
        ending = next((ending for ending in _ENDINGS if self.name.endswith(ending)), "")
        return f"{self.name.removesuffix(ending)}{_ENDINGS.get(ending, '')}".replace("_", " ")

    def parse(self, text: object) -> float | str:
        """Return a bound such as `2Gi`, `90ms`, `equivalent` or 1.5 in the metric's unit, or ValueError."""
        if self.unit == "verdict":
            if text not in VERDICTS:
                raise ValueError(
                    f"expected one of {', '.join(VERDICTS)}, got {text!r}{nearest(text, VERDICTS)}"
                )
            return str(text)
        if self.unit == "bytes":
            return parse_bytes(text)
        if self.unit == "s":
            return parse_duration(text)
        try:
            return float(text)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ValueError(f"expected a number, got {text!r}") from None

    def format(self, value: float | str | None) -> str:
        """Return a value as text with its unit, such as `1.46 GiB`; `-` for None.

        Numbers have three digits, or two after the point where they are ratios.
        """
        if value is None:
            return "-"
        if isinstance(value, str):
            return value
        if self.unit == "bytes":
            return format_bytes(value)
        if self.unit == "s":
            return format_seconds(value)
        if self.unit == "TFLOP/s":
            return f"{_digits(value)} TFLOP/s" if abs(value) >= 1 else f"{_digits(1e3 * value)} GFLOP/s"
        if self.unit in ("ratio", "share") and 0.1 <= abs(value) < 1000:
            return f"{value:.2f}"
        return _digits(value)

    def read(self, record: object) -> Any:
        """Return this metric of a Record, or None if the trial ended before it was measured."""
        if self.compute is not None:
            try:
                return self.compute(record)
            except Exception as error:
                raise UsageError(f"metric {self.name}: {type(error).__name__}: {error}") from error
        for name in self.path:
            record = getattr(record, name, None)
        return record


def _digits(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


_ROWS: tuple[tuple[str, Unit, Direction | None, str, str], ...] = (
    ("tokens_per_s", "1/s", "maximize", "timing", "Tokens per second of all ranks, or samples or steps."),
    ("samples_per_s", "1/s", "maximize", "timing", "Samples (sequences) per second of all ranks."),
    ("steps_per_s", "1/s", "maximize", "timing", "Optimizer steps per second."),
    ("tflops", "TFLOP/s", "maximize", "timing", "Model floating-point operations per second."),
    ("mean_step_s", "s", "minimize", "timing", "Mean time of one step; rates are computed from it."),
    ("median_step_s", "s", "minimize", "timing", "Median time of one step."),
    ("p95_step_s", "s", "minimize", "timing", "Time that 95 % of the steps do not exceed."),
    ("worst_step_s", "s", "minimize", "timing", "Time of the slowest step."),
    ("of_compute", "share", "maximize", "timing", "Time without communication, relative to the time."),
    ("peak_device_bytes", "bytes", "minimize", "memory", "Peak device memory of one rank."),
    ("peak_host_bytes", "bytes", "minimize", "memory", "Peak host memory of one rank."),
    ("peak_rss_bytes", "bytes", "minimize", "memory", "Peak resident set of one rank."),
    ("error_ratio", "ratio", "minimize", "correctness", "Error relative to the reference's own error."),
    ("max_abs_diff", "ratio", "minimize", "correctness", "Largest difference from the reference."),
    ("verdict", "verdict", None, "correctness", "The verdict; identical is the highest."),
)


class _Metrics(dict[str, Metric]):
    """Metrics by name. Plug-ins provide those that zbench does not have."""

    def __missing__(self, name: str) -> Metric:
        point = next((point for point in entry_points(group="zbench.metrics") if point.name == name), None)
        if point is None:
            raise KeyError(name)
        metric = point.load()
        if not isinstance(metric, Metric) or metric.compute is None:
            raise UsageError(f"metric {name}: expected a Metric with a `compute`, got {point.value}")
        return self.setdefault(name, metric)

    def names(self) -> list[str]:
        """Return the names of all metrics; those of plug-ins are last."""
        return list(dict.fromkeys((*self, *(point.name for point in entry_points(group="zbench.metrics")))))


METRICS = _Metrics(
    (name, Metric(name, unit, better, (section, name), description))
    for name, unit, better, section, description in _ROWS
)

TIMED: tuple[Unit, ...] = ("s", "1/s", "TFLOP/s")
STEP_TIMES = ("mean_step_s", "median_step_s", "p95_step_s", "worst_step_s")
"""Rates are computed from the first; the others are shown beside it."""

RATES = {name: metric.title for name, metric in METRICS.items() if metric.unit == "1/s"}
"""Rate -> title. If the tokens or samples of a workload are unknown, the next rate in this order replaces
its rate."""

_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq,
}  # fmt: skip


def metric_named(name: str) -> Metric:
    """Return the metric with a name. ValueError, with the most similar name, if there is none."""
    try:
        return METRICS[name]
    except KeyError:
        names = METRICS.names()
        text = f"unknown metric {name!r}{nearest(name, names)}; metrics are {', '.join(names)}"
        raise ValueError(text) from None


@dataclass(frozen=True, slots=True)
class Goal:
    """A metric to maximize or minimize."""

    metric: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class Constraint:
    """`metric operator bound`; the bound is a number in the metric's unit or the name of a verdict."""

    metric: str
    operator: Operator
    bound: float | str

    @classmethod
    def parse(cls, metric: str, text: object) -> "Constraint":
        """Parse `<= 2Gi`. ValueError for an unknown metric, a missing operator or a bound of another unit."""
        definition = metric_named(metric)
        stripped = text.strip() if isinstance(text, str) else ""
        sign = next((sign for sign in _COMPARE if stripped.startswith(sign)), None)
        if sign is None:
            example = {"verdict": ">= equivalent", "bytes": "<= 2Gi"}.get(definition.unit, "<= 2")
            raise ValueError(f'expected an operator and a bound such as "{example}", got {text!r}')
        return cls(metric, sign, definition.parse(stripped[len(sign) :].strip()))

    def holds(self, value: float | str | None) -> bool:
        """Return whether a value meets the constraint; False for a missing value."""
        return value is not None and _COMPARE[self.operator](_number(value), _number(self.bound))

    def violation(self, value: float | str | None) -> float:
        """Return by how much a value violates the constraint: <= 0 if it does not, inf if it is missing."""
        if value is None:
            return float("inf")
        excess = _number(value) - _number(self.bound)
        if excess != excess:
            return float("inf")
        if self.operator == "==":
            return abs(excess)
        return excess if self.operator in ("<=", "<") else -excess

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {METRICS[self.metric].format(self.bound)}"


def _number(value: float | str) -> float:
    """Return a value as a float; for a verdict its index in VERDICTS."""
    if isinstance(value, str):
        return float(VERDICTS.index(value))
    return float(value)
