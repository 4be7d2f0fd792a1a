"""A run's configurations as rows of plain values: CSV, Parquet and pandas."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.analysis.ranking import Ranking
from zbench.errors import UsageError, reason_of
from zbench.record.summary import ConfigSummary, varied_keys
from zbench.report.columns import AXES, OUTCOME, TRIAL, Column, DataTable, metric
from zbench.spec.metrics import METRICS

if TYPE_CHECKING:
    import pandas

_PLAIN = (str, int, float, bool)
_UNKNOWN = (None, None)


def documents(summaries: Sequence[ConfigSummary], ranking: Ranking) -> list[dict[str, Any]]:
    """Return each configuration over all of its repeats, as JSON documents have it."""
    interval = _of("of_compute_interval", ranking.of_compute.get)
    return DataTable([TRIAL, AXES, *_figures(ranking), interval], summaries).documents()


def flat_rows(summaries: Sequence[ConfigSummary], ranking: Ranking) -> list[dict[str, Any]]:
    """Return a row for each configuration with a column for each axis, and `mark` as the table has it."""
    ends = (
        _of("of_compute_low", lambda name: ranking.of_compute.get(name, _UNKNOWN)[0]),
        _of("of_compute_high", lambda name: ranking.of_compute.get(name, _UNKNOWN)[1]),
    )
    axes = map(_axis, varied_keys(summaries))
    columns = [TRIAL, _of("mark", ranking.mark), *axes, *_figures(ranking), *ends]
    return DataTable(columns, summaries).documents()


def _figures(ranking: Ranking) -> list[Column[ConfigSummary]]:
    repeats = Column[ConfigSummary]("repeats", lambda summary: len(summary.ok))
    bounds = [_of("worse_by", ranking.worse_by.get), _of("at_most", ranking.at_most.get)]
    return [OUTCOME, repeats, *map(metric, METRICS.names()), *bounds]


def _of(name: str, value: Callable[[str], Any]) -> Column[ConfigSummary]:
    """Return the column of what a ranking knows of a trial id."""
    return Column(name, lambda summary: value(summary.trial_id))


def _axis(key: str) -> Column[ConfigSummary]:
    """Return the column of an axis in plain values; a mapping or a list is JSON."""

    def value(summary: ConfigSummary) -> Any:
        held = summary.axes.get(key)
        return held if key not in summary.axes or isinstance(held, _PLAIN) else json.dumps(held)

    return Column(key, value)


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
