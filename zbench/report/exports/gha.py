"""The two arrays of github-action-benchmark: its tools customSmallerIsBetter and customBiggerIsBetter."""

import json
import statistics

from zbench.analysis.compare import Comparison
from zbench.analysis.exact import exact_values
from zbench.record.summary import ConfigSummary, known_rate
from zbench.report.exports.bmf import BYTES
from zbench.report.text import label
from zbench.spec.metrics import RATES

SMALLER, BIGGER = "smaller-is-better.json", "bigger-is-better.json"
Entry = dict[str, str | float]


def render_files(comparison: Comparison) -> dict[str, str]:
    """Return both files by name: step time and sizes of head in one, throughput in the other."""
    smaller, bigger = [], []
    for trial in (*(row.head for row in comparison.rows), *comparison.added):
        name = known_rate([trial])
        seconds, rate = trial.values("mean_step_s"), trial.number(name)
        if seconds:
            spread = 1e3 * (max(seconds) - min(seconds)) / 2
            typical = 1e3 * statistics.median(seconds)
            smaller.append(_entry(trial, "step time", "ms", typical, range=f"± {spread:.3g}"))
        for metric in BYTES:
            if values := exact_values(trial, metric):
                smaller.append(_entry(trial, metric, "bytes", max(values)))
        if rate is not None:
            bigger.append(_entry(trial, "throughput", RATES[name], rate))
    return {SMALLER: json.dumps(smaller, indent=2), BIGGER: json.dumps(bigger, indent=2)}


def _entry(trial: ConfigSummary, what: str, unit: str, value: float, **more: str) -> Entry:
    extra = f"verdict {trial.verdict}, trial {trial.trial_id}"
    return {"name": f"{label(trial)} {what}", "unit": unit, "value": value, **more, "extra": extra}
