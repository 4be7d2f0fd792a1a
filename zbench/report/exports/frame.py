"""A run's configurations as rows of plain values: CSV, Parquet and pandas."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.analysis.ranking import Ranking
from zbench.errors import UsageError, reason_of
from zbench.record.summary import ConfigSummary
from zbench.report.text import outcome_text
from zbench.spec.metrics import METRICS

if TYPE_CHECKING:
    import pandas

_PLAIN = (str, int, float, bool)


def row(summary: ConfigSummary, ranking: Ranking) -> dict[str, Any]:
    """Return one configuration over all of its repeats, as the table has it."""
    figures = {name: summary.metric(name) for name in METRICS.names()}
    about = {"trial_id": summary.trial_id, "axes": summary.axes, "outcome": outcome_text(summary)}
    name = summary.trial_id
    bounds = {"worse_by": ranking.worse_by.get(name), "at_most": ranking.at_most.get(name)}
    interval = {"of_compute_interval": ranking.of_compute.get(name)}
    return {**about, "repeats": len(summary.ok), **figures, **bounds, **interval}


def flat_rows(summaries: Sequence[ConfigSummary], ranking: Ranking) -> list[dict[str, Any]]:
    """Return a row for each configuration with a column for each axis, and `mark` as the table has it."""
    rows = []
    for summary in summaries:
        figures = row(summary, ranking)
        axes = {
            key: value if isinstance(value, _PLAIN) else json.dumps(value)
            for key, value in figures.pop("axes").items()
        }
        trial_id = figures.pop("trial_id")
        low, high = figures.pop("of_compute_interval") or (None, None)
        figures |= {"of_compute_low": low, "of_compute_high": high}
        rows.append({"trial_id": trial_id, "mark": ranking.mark(trial_id), **axes, **figures})
    return rows


def frame(rows: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """Return the rows as a data frame; UsageError where pandas is missing."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError(f"{error}; install it, as `pip install 'zbench[pandas]'`") from None
    return pandas.DataFrame(list(rows))


def write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the rows as a Parquet file; an axis whose values are of several types is written as text."""
    data = frame(rows)
    for name in data.columns:
        if len({type(value) for value in data[name].dropna()}) > 1:
            data[name] = data[name].astype(str)
    try:
        data.to_parquet(path, index=False)
    except ImportError as error:
        raise UsageError(f"{error}; install it, as `pip install 'zbench[pandas]'`") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({reason_of(error)}); name another place") from None
