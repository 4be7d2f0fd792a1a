"""The table of a run: one row per configuration, best first, each with its verdict; notes on it below."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.text import Text

from zbench.analysis.adaptive_repeats import open_question
from zbench.analysis.ranking import Ranking, rank, recommended_why
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, obstacles, point, summarize, varied_keys
from zbench.report.screen import Column, Screen, print_table, word
from zbench.report.text import (
    axes_text,
    bytes_text,
    distinct_texts,
    failure_text,
    outcome_text,
    plural,
    printable,
    rate_text,
    ratio_text,
    seconds_text,
    short_ids,
    spread_text,
    value_text,
)
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec

_OUTCOME_ORDER = ("ok", "oom", "timeout", "crashed", "invalid")
_RANK = re.compile(r"\brank \d+\b")
_WIDEST_VALUE = 14
_WIDEST_PLAIN = 32

_FIGURES: dict[Column, Callable[[ConfigSummary], Text | str]] = {
    Column("outcome", "left"): lambda s: word(outcome_text(s)),
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
        return word(summary.verdict)
    return word(outcome_text(summary))


def notes(
    summaries: Sequence[ConfigSummary],
    objective: ObjectiveSpec,
    ranking: Ranking,
    run_dir: Path | None = None,
) -> list[Text]:
    """Return the lines below the table. run_dir: where the logs are that they name."""
    left_open = open_question(summaries, ranking)
    return [
        *_best_lines(summaries, objective, ranking),
        *([Text(left_open)] if left_open else []),
        *(
            Text.assemble(word(summary.verdict), f" {axes_text(summary.axes)}: {_difference(summary)}")
            for summary in summaries
            if summary.verdict in ("drifted", "wrong")
        ),
        *_failure_lines([summary for summary in summaries if summary.outcome != "ok"], run_dir),
        *(Text.assemble(("warning", "yellow"), f" {line}") for line in _warning_lines(summaries)),
    ]


def _difference(summary: ConfigSummary) -> str:
    """Return by how much, where and since when a configuration differs from the reference."""
    worst = summary.farthest
    parts = [f"error ratio {ratio_text(worst.error_ratio)}"] if worst.error_ratio is not None else []
    parts += [f"worst parameter {printable(worst.worst_parameter)}"] if worst.worst_parameter else []
    if worst.first_differing_step is not None:
        parts.append(f"differs from step {worst.first_differing_step} on")
    return ", ".join(parts)


def _warning_lines(summaries: Iterable[ConfigSummary]) -> list[str]:
    """Return each kind of warning once, and how many configurations have it.

    A kind is the words up to a colon; what follows is shown where it is the same for all.
    """
    kinds: dict[str, tuple[set[str], set[str]]] = {}
    for summary in summaries:
        for warning in summary.warnings:
            texts, trials = kinds.setdefault(warning.split(":")[0], (set(), set()))
            texts.add(warning)
            trials.add(summary.trial_id)
    return [
        f"{printable(texts.pop() if len(texts) == 1 else kind)} ({plural(len(trials), 'configuration')})"
        for kind, (texts, trials) in kinds.items()
    ]


def _best_lines(summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, ranking: Ranking) -> list[Text]:
    chosen = next((s for s in summaries if s.trial_id == ranking.recommended), None)
    if chosen is not None:
        description = f"{axes_text(chosen.axes)}: {_figure(chosen, objective)}, {chosen.verdict}"
        if ranking.best is not None:
            return [Text.assemble(("* best", "bold green"), f" {description}")]
        within = ranking.equal_within
        near = f" (equal within {within:.1%})" if within is not None else ""
        count = len(ranking.indistinguishable)
        leaders = f": one of {count} that cannot be told apart{near}"
        why = recommended_why([s for s in summaries if s.trial_id in ranking.indistinguishable])
        return [Text.assemble(("≈ best", "bold green"), leaders), Text(f"  recommended {why}: {description}")]
    if not any(summary.ok for summary in summaries):
        return [Text("no best: no configuration ended well")]
    reasons = dict.fromkeys(reason for s in summaries if s.ok for reason in obstacles(s, objective))
    if list(reasons) == ["unchecked"]:
        return [Text("no best: nothing was verified, and only a correct configuration can be the best")]
    why = "; ".join(list(reasons)[:3])
    return [Text(f"no best: no configuration is both correct and within the constraints ({why})")]


def _figure(summary: ConfigSummary, objective: ObjectiveSpec) -> str:
    goal = objective.goals[0]
    if goal.metric == "tokens_per_s":
        return f"{rate_text(summary.number(goal.metric))} tokens/s"
    return METRICS[goal.metric].format(summary.metric(goal.metric))


def log_path(log: str, run_dir: Path | None) -> str:
    """Return the path of a log relative to the working directory."""
    return printable(log if run_dir is None else os.path.relpath(run_dir / log))


def _failure_lines(summaries: Iterable[ConfigSummary], run_dir: Path | None) -> list[Text]:
    """Return one line for each distinct reason (whichever rank gave it), with the first log."""
    by_reason: dict[tuple[str, str], list[ConfigSummary]] = {}
    for summary in summaries:
        reason = _RANK.sub("", failure_text(summary))
        by_reason.setdefault((outcome_text(summary), reason), []).append(summary)
    lines = []
    for (outcome, _), (first, *others) in by_reason.items():
        more = f" and {len(others)} more" if others else ""
        log = first.error.log if first.error is not None else None
        where = f" (log: {log_path(log, run_dir)})" if log else ""
        text = f" {axes_text(first.axes)}{more}: {failure_text(first)}{where}"
        lines.append(Text.assemble(word(outcome), text))
    return lines
