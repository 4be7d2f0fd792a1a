"""Bencher Metric Format: head's figures by configuration and measure (https://bencher.dev/docs/reference/bencher-metric-format)."""

import json
import statistics
from collections.abc import Sequence

from zbench.analysis.compare import Comparison
from zbench.analysis.exact import exact_values
from zbench.record.summary import ConfigSummary, known_rate
from zbench.report.text import label

BYTES = ("peak_device_bytes", "peak_host_bytes", "traffic_bytes")
Measure = dict[str, float]


def render(comparison: Comparison) -> str:
    """Return `{benchmark: {measure: {value, lower_value, upper_value}}}` of the finished trials of head.

    `latency` is nanoseconds a step and `throughput` tokens (else samples or steps) a second, Bencher's own
    names; sizes are in bytes.
    Values are medians over repeats, bounds the smallest and largest repeat.
    """
    trials = [*(row.head for row in comparison.rows), *comparison.added]
    return json.dumps({label(trial): _measures(trial) for trial in trials if trial.ok}, indent=2)


def _measures(trial: ConfigSummary) -> dict[str, Measure]:
    rate = known_rate([trial])
    timings = [record.timing for record in trial.ok if record.timing is not None]
    samples: dict[str, Sequence[float]] = {
        "latency": [1e9 * timing.mean_step_s for timing in timings],
        "throughput": trial.values(rate),
        **{name: exact_values(trial, name) for name in BYTES},
    }
    measures = {name: _measure(values) for name, values in samples.items() if values}
    throughput = trial.number(rate)
    if throughput is not None:
        measures["throughput"]["value"] = throughput  # work over the mean step, not the median of rates
    return measures


def _measure(values: Sequence[float]) -> Measure:
    middle = float(statistics.median(values))
    return {"value": middle, "lower_value": min(values), "upper_value": max(values)}
