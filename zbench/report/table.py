"""The table of a run: one row per configuration, best first, each with its verdict."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.text import Text

from zbench.analysis.ranking import Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, obstacles, point, summarize, varied_keys
from zbench.report.grid import Column, Grid, GridRow
from zbench.report.notes import notes
from zbench.report.screen import Screen
from zbench.report.text import (
    OUTCOME_STYLE,
    VERDICT_STYLE,
    bytes_text,
    distinct_texts,
    outcome_text,
    printable,
    rate_text,
    ratio_text,
    seconds_text,
    short_ids,
    spread_text,
    value_text,
)
from zbench.spec.sweep import ObjectiveSpec

_OUTCOME_ORDER = ("ok", "oom", "timeout", "crashed", "invalid")
_WIDEST_VALUE = 14
_WIDEST_PLAIN = 32

_FIGURES: dict[Column, Callable[[ConfigSummary], Text | str]] = {
    Column("outcome", "left"): lambda s: Text(outcome_text(s), OUTCOME_STYLE[outcome_text(s)]),
    Column("tokens/s"): lambda s: rate_text(s.number("tokens_per_s")),
    Column("spread"): lambda s: spread_text(s.spread("tokens_per_s")),
    Column("median step"): lambda s: seconds_text(s.number("median_step_s")),
    Column("peak mem"): lambda s: bytes_text(s.number("peak_device_bytes")),
    Column("host mem"): lambda s: bytes_text(s.number("peak_host_bytes")),
    Column("verdict", "left"): lambda s: _verdict(s),
    Column("error ratio"): lambda s: ratio_text(s.number("error_ratio")),
}
_BEHIND = Column("behind")
_DROPPED_FIRST = ("behind", "median step", "host mem", "error ratio", "spread", "outcome")


def print_results(
    screen: Screen,
    records: Iterable[Record],
    objective: ObjectiveSpec,
    run_dir: Path | None = None,
    ranking: Ranking | None = None,
) -> None:
    """Print the table of all configurations, the best marked, and notes on those that failed or differ.

    run_dir: where the logs are that the notes name. ranking: of these records, where it is known already.
    """
    summaries = ranked(summarize(records), objective)
    ranking = rank(summaries, objective) if ranking is None else ranking
    wrapped = not screen.is_terminal
    table, left_out = results_grid(summaries, ranking, narrow=screen.is_terminal).fitted(screen)
    screen.print(table)
    if left_out:
        run = f" {shlex.quote(os.path.relpath(run_dir))}" if run_dir is not None else ""
        hint = f"no room for {', '.join(left_out)}: widen the terminal, or `zbench show{run} --verbose`"
        screen.print(Text(printable(hint), "dim"))
    for line in notes(summaries, objective, ranking, run_dir):
        screen.print(line, soft_wrap=wrapped)


def ranked(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the configurations in the order of the first goal.

    Those that are outside a constraint or not proved correct come after all that could be the best, those
    that did not end well last.
    """
    goal = objective.goals[0]
    return sorted(
        summaries,
        key=lambda s: (_OUTCOME_ORDER.index(s.outcome), bool(obstacles(s, objective)), cost(s, goal)),
    )


def results_grid(summaries: Sequence[ConfigSummary], ranking: Ranking, *, narrow: bool) -> Grid:
    """Return trial, axes and figures of each configuration; narrow: long axis values are cut shorter."""
    keys = varied_keys(summaries)
    points = [point(summary, keys) for summary in summaries]
    width = _WIDEST_VALUE if narrow else _WIDEST_PLAIN
    texts = {key: distinct_texts((values[key] for values in points), width) for key in keys}
    names = short_ids(summaries)
    figures = {column: figure for column, figure in _FIGURES.items() if _says_anything(column, summaries)}
    rows = []
    for summary, values, name in zip(summaries, points, names, strict=True):
        mark, behind = ranking.mark(summary.trial_id), _behind(ranking, summary)
        axes = [Text(texts[key][value_text(value)]) for key, value in values.items()]
        cells = [Text(name, "dim"), *axes, *(_cell(figure(summary)) for figure in figures.values())]
        cells += [Text(behind)] if any(ranking.worse_by.values()) else []
        rows.append(GridRow(cells, mark, "bold" if mark else ""))
    columns = [Column("trial", "left"), *(Column(printable(key)) for key in keys), *figures]
    columns += [_BEHIND] if any(ranking.worse_by.values()) else []
    return Grid(columns, rows, _DROPPED_FIRST)


def _behind(ranking: Ranking, summary: ConfigSummary) -> str:
    """Return by how much, at least, a configuration is worse than the best; nothing if unknown."""
    worse = ranking.worse_by.get(summary.trial_id, 0.0)
    return f">{worse:.1%}" if worse > 0 else ""


def _says_anything(column: Column, summaries: Sequence[ConfigSummary]) -> bool:
    """Whether the column is worth its room: host memory only where some is used."""
    return column.name != "host mem" or any(any(s.values("peak_host_bytes")) for s in summaries)


def _cell(value: Text | str) -> Text:
    return value if isinstance(value, Text) else Text(value)


def _verdict(summary: ConfigSummary) -> Text:
    """Return the verdict; the outcome where that is worse, because a narrow table has no column for it."""
    if summary.outcome == "ok" or summary.verdict in ("drifted", "wrong"):
        return Text(summary.verdict, VERDICT_STYLE[summary.verdict])
    return Text(outcome_text(summary), OUTCOME_STYLE[outcome_text(summary)])
