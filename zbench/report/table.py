"""The table of a run: one row a configuration, best first, each with its verdict."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, best, cost, point, summarize, varied_keys
from zbench.report.notes import notes
from zbench.report.text import (
    OUTCOME_STYLE,
    VERDICT_STYLE,
    bytes_text,
    distinct_texts,
    outcome_text,
    rate_text,
    ratio_text,
    seconds_text,
    spread_text,
    value_text,
)
from zbench.spec.sweep import ObjectiveSpec

_OUTCOME_ORDER = ("ok", "oom", "timeout", "crashed", "invalid")
_DROPPED_FIRST = ("host mem", "median step", "error ratio", "spread")
"""What a narrow terminal does without, in this order; `show --verbose` has it all."""

_WIDEST_VALUE = 14
_WIDEST_PLAIN = 32
_UNBOUNDED = 10_000

_COLUMNS: dict[str, Callable[[ConfigSummary], Text | str]] = {
    "outcome": lambda s: Text(outcome_text(s), OUTCOME_STYLE[outcome_text(s)]),
    "tokens/s": lambda s: rate_text(s.number("tokens_per_s")),
    "spread": lambda s: spread_text(s.spread("tokens_per_s")),
    "median step": lambda s: seconds_text(s.number("median_step_s")),
    "peak mem": lambda s: bytes_text(s.number("peak_device_bytes")),
    "host mem": lambda s: bytes_text(s.number("peak_host_bytes")),
    "verdict": lambda s: Text(s.verdict if s.ok else "-", VERDICT_STYLE[s.verdict]),
    "error ratio": lambda s: ratio_text(s.number("error_ratio")),
}
_LEFT = ("outcome", "verdict")


def print_results(
    console: Console, records: Iterable[Record], objective: ObjectiveSpec, run_dir: Path | None = None
) -> None:
    """Print the table of all configurations, the best marked, and notes on those that failed or differ.

    run_dir: where the logs are that the notes name.
    """
    summaries = ranked(summarize(records), objective)
    winner = best(summaries, objective)
    if console.is_terminal:
        console.print(_fitted(console, summaries, winner))
    else:
        console.print(results_table(summaries, winner, _useful(summaries), plain=True))
    for line in notes(summaries, objective, winner, run_dir):
        console.print(line, soft_wrap=not console.is_terminal)


def ranked(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the configurations in the order of the first goal, those that did not end well last."""
    goal = objective.goals[0]
    return sorted(summaries, key=lambda s: (_OUTCOME_ORDER.index(s.outcome), cost(s, goal)))


def results_table(
    summaries: Sequence[ConfigSummary], winner: ConfigSummary | None, columns: Sequence[str], *, plain: bool
) -> Table:
    """Return the table with these columns after the axes; plain: no lines and one-line headers, for pipes."""
    keys = varied_keys(summaries)
    table = Table(
        box=None if plain else box.SIMPLE_HEAD, header_style="bold", padding=(0, 2 if plain else 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for key in keys:
        header = key if plain else key.replace("_", "\n").replace(".", "\n")
        table.add_column(header, justify="right", no_wrap=True, overflow="ellipsis")
    for column in columns:
        justify: Any = "left" if column in _LEFT else "right"
        table.add_column(column if plain else column.replace(" ", "\n"), justify=justify, no_wrap=True)
    points = [point(summary, keys) for summary in summaries]
    width = _WIDEST_PLAIN if plain else _WIDEST_VALUE
    texts = {key: distinct_texts((values[key] for values in points), width) for key in keys}
    for summary, values in zip(summaries, points, strict=True):
        is_best = winner is not None and summary.trial_id == winner.trial_id
        axes = [texts[key][value_text(value)] for key, value in values.items()]
        cells = [_COLUMNS[column](summary) for column in columns]
        table.add_row("*" if is_best else "", *axes, *cells, style="bold" if is_best else "")
    return table


def _fitted(console: Console, summaries: Sequence[ConfigSummary], winner: ConfigSummary | None) -> Table:
    """Return the table with as many columns as the terminal has room for."""
    columns = _useful(summaries)
    for dropped in (None, *_DROPPED_FIRST):
        columns = [column for column in columns if column != dropped]
        table = results_table(summaries, winner, columns, plain=False)
        if (
            Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
            <= console.width
        ):
            break
    return table


def _useful(summaries: Sequence[ConfigSummary]) -> list[str]:
    """Return the columns that say anything: host memory only where some is used."""
    on_host = any(any(summary.values("peak_host_bytes")) for summary in summaries)
    return [column for column in _COLUMNS if column != "host mem" or on_host]
