"""The table of a run: one row per configuration, best first, each with its verdict."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.text import Text

from zbench.analysis.ranking import Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, obstacles, point, summarize, varied_keys
from zbench.report.notes import notes
from zbench.report.screen import Column, Screen, print_table
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
    columns, rows = _table(summaries, ranking, _WIDEST_VALUE if screen.is_terminal else _WIDEST_PLAIN)
    styles = ["bold" if ranking.mark(summary.trial_id) else "" for summary in summaries]
    run = f" {shlex.quote(os.path.relpath(run_dir))}" if run_dir is not None else ""
    remedy = printable(f"`zbench show{run} --verbose`")
    print_table(screen, columns, rows, styles=styles, dropped_first=_DROPPED_FIRST, remedy=remedy)
    for line in notes(summaries, objective, ranking, run_dir):
        screen.print(line, soft_wrap=not screen.is_terminal)


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


def _table(
    summaries: Sequence[ConfigSummary], ranking: Ranking, widest: int
) -> tuple[list[Column], list[list[Text]]]:
    """Return mark, trial, axes and figures of each configuration; widest: of an axis value, which is cut."""
    keys = varied_keys(summaries)
    points = [point(summary, keys) for summary in summaries]
    texts = {key: distinct_texts((values[key] for values in points), widest) for key in keys}
    figures = {column: figure for column, figure in _FIGURES.items() if _says_anything(column, summaries)}
    columns = [Column("trial", "left"), *(Column(printable(key)) for key in keys), *figures]
    rows = []
    for summary, values, name in zip(summaries, points, short_ids(summaries), strict=True):
        axes = [Text(texts[key][value_text(value)]) for key, value in values.items()]
        cells = [Text.assemble(figure(summary)) for figure in figures.values()]
        rows.append([Text(name, "dim"), *axes, *cells])
    marks = [Text(ranking.mark(summary.trial_id)) for summary in summaries]
    if any(mark.plain for mark in marks):
        columns, rows = (
            [Column("", "left"), *columns],
            [[m, *row] for m, row in zip(marks, rows, strict=True)],
        )
    if any(ranking.worse_by.values()):
        columns.append(Column("behind"))
        for row, summary in zip(rows, summaries, strict=True):
            worse = ranking.worse_by.get(summary.trial_id, 0.0)  # at least; 0 if unknown
            row.append(Text(f">{worse:.1%}" if worse > 0 else ""))
    return columns, rows


def _says_anything(column: Column, summaries: Sequence[ConfigSummary]) -> bool:
    """Whether the column is worth its room: host memory only where some is used."""
    return column.name != "host mem" or any(any(s.values("peak_host_bytes")) for s in summaries)


def _verdict(summary: ConfigSummary) -> Text:
    """Return the verdict; the outcome where that is worse, because a narrow table has no column for it."""
    if summary.outcome == "ok" or summary.verdict in ("drifted", "wrong"):
        return Text(summary.verdict, VERDICT_STYLE[summary.verdict])
    return Text(outcome_text(summary), OUTCOME_STYLE[outcome_text(summary)])
