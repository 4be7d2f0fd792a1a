"""How runs are compared: error rate, thresholds, and what makes the command fail."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FailOn = Literal["regression", "suspected", "unchecked", "inconclusive", "missing", "correctness"]
FAIL_ON: tuple[FailOn, ...] = (
    "regression",
    "suspected",
    "unchecked",
    "inconclusive",
    "missing",
    "correctness",
)

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
"""Side by side the machine's noise between runs is gone, so a smaller slowdown can be told."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How runs are compared. Thresholds are fractions.

    run_noise: the spread between runs of one version, a fraction, where the user stated it; None where only
    a history of runs can tell.
    """

    alpha: float = 0.01
    thresholds: Mapping[str, float] = field(default_factory=lambda: STORED_THRESHOLDS)
    run_noise: float | None = None
    fail_on: frozenset[FailOn] = frozenset(FAIL_ON)
    across: bool = False

    def margin(self, metric: str) -> float:
        """Return the threshold of a metric as a logarithm."""
        return math.log1p(self.thresholds.get(metric, 0.0))
