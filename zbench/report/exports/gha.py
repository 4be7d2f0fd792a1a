"""The two arrays of github-action-benchmark: its tools customSmallerIsBetter and customBiggerIsBetter."""

import json
import statistics

from zbench.analysis.compare import Comparison
from zbench.analysis.exact import exact_values
from zbench.record.summary import ConfigSummary
from zbench.report.text import label

SMALLER, BIGGER = "smaller-is-better.json", "bigger-is-better.json"
Entry = dict[str, str | float]


def render_files(comparison: Comparison) -> dict[str, str]:
    """Return both files by name: step time and sizes of head in one, tokens a second in the other."""
    trials = [trial for trial in (*(row.head for row in comparison.rows), *comparison.added) if trial.ok]
    smaller = [entry for trial in trials for entry in _smaller(trial)]
    rates = ((trial, trial.number("tokens_per_s")) for trial in trials)
    bigger = [_entry(trial, "throughput", "tokens/s", rate) for trial, rate in rates if rate is not None]
    return {SMALLER: json.dumps(smaller, indent=2), BIGGER: json.dumps(bigger, indent=2)}


def _smaller(trial: ConfigSummary) -> list[Entry]:
    entries: list[Entry] = []
    seconds = trial.values("median_step_s")
    if seconds:
        spread = 1e3 * (max(seconds) - min(seconds)) / 2
        median = 1e3 * statistics.median(seconds)
        entries.append(_entry(trial, "step time", "ms", median, f"± {spread:.3g}"))
    for metric in ("peak_device_bytes", "peak_host_bytes", "traffic_bytes"):
        values = exact_values(trial, metric)
        if values:
            entries.append(_entry(trial, metric, "bytes", max(values)))
    return entries


def _entry(trial: ConfigSummary, what: str, unit: str, value: float, spread: str | None = None) -> Entry:
    entry: Entry = {"name": f"{label(trial)} {what}", "unit": unit, "value": value}
    if spread is not None:
        entry["range"] = spread
    return entry | {"extra": f"verdict {trial.verdict}, trial {trial.trial_id}"}
