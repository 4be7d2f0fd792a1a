"""The settings of a comparison: error rate, thresholds, failing answers; and how its options are parsed."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from zbench.errors import UsageError, nearest

FailOn = Literal["regression", "suspected", "unchecked", "inconclusive", "missing", "correctness"]
FAIL_ON: tuple[FailOn, ...] = get_args(FailOn)

STORED_THRESHOLDS: Mapping[str, float] = {
    "step_time": 0.05,
    "peak_device_bytes": 0.01,
    "peak_host_bytes": 0.01,
    "traffic_bytes": 0.01,
    "traffic_calls": 0.0,
    "allocations": 0.0,
    "operators": 0.0,
    "kernel_launches": 0.0,
    "flops": 0.0,
    "instructions": 0.02,
}
"""The accepted change of every compared metric, as a fraction; smaller is better for each."""

PAIRED_THRESHOLDS: Mapping[str, float] = {**STORED_THRESHOLDS, "step_time": 0.02}
"""A paired measurement has no noise between runs, so it can detect a smaller slowdown."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How runs are compared. Thresholds are fractions."""

    alpha: float = 0.01
    thresholds: Mapping[str, float] = field(default_factory=lambda: STORED_THRESHOLDS)
    fail_on: frozenset[FailOn] = frozenset(FAIL_ON)
    across: bool = False

    def margin(self, metric: str) -> float:
        """Return the threshold of a metric as a logarithm."""
        return math.log1p(self.thresholds.get(metric, 0.0))


_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")
_HIGHEST = 10.0


def parse_percent(text: str, label: str) -> float:
    """Return `3%` as 0.03; UsageError without a unit, or outside 0 to 1000 %."""
    match = _PERCENT.fullmatch(text)
    if match is None or not match[2]:
        remedy = f"; write {match[1]}%" if match else ""
        raise UsageError(f"{label}: expected a percentage with its unit, such as 3%, got {text!r}{remedy}")
    share = float(match[1]) / 100
    if share > _HIGHEST:
        raise UsageError(f"{label}: expected at most {100 * _HIGHEST:g}%, got {text}")
    return share


def parse_thresholds(texts: Sequence[str], *, paired: bool = False) -> dict[str, float]:
    """Return every metric's threshold as a fraction: the defaults, changed by `METRIC=PERCENT` texts."""
    thresholds = dict(PAIRED_THRESHOLDS if paired else STORED_THRESHOLDS)
    for text in texts:
        metric, sign, value = text.partition("=")
        metric = metric.strip()
        if not sign:
            raise UsageError(f"--threshold: expected METRIC=PERCENT, such as step_time=3%, got {text!r}")
        if metric not in thresholds:
            choices = ", ".join(thresholds)
            hint = nearest(metric, thresholds)
            raise UsageError(f"--threshold: unknown metric {metric!r}{hint}; expected one of {choices}")
        thresholds[metric] = parse_percent(value, f"--threshold {metric}")
    return thresholds


def parse_fail_on(text: str) -> frozenset[FailOn]:
    """Return what fails a comparison from `regression,missing`, or nothing from `none`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return frozenset()
    expected = f"expected `none` or any of {','.join(FAIL_ON)}"
    for word in words:
        if word not in FAIL_ON:
            raise UsageError(f"--fail-on: unknown {word!r}{nearest(word, FAIL_ON)}; {expected}")
    if not words:
        raise UsageError(f"--fail-on: {expected}, got nothing")
    return frozenset(cast(list[FailOn], words))


def check_alpha(alpha: float) -> float:
    """Return alpha; UsageError unless it is a probability that means something, above 0 and at most 0.2."""
    if not isinstance(alpha, int | float) or not 0 < alpha <= 0.2:  # NaN is not, either
        raise UsageError(f"--alpha: expected a probability above 0 and at most 0.2, got {alpha}")
    return alpha
