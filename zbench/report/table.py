"""The table of a run: a row per configuration, the best first; notes, and a search's findings, below it."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from zbench.analysis.adaptive_repeats import open_question
from zbench.analysis.ranking import Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, first_goal, obstacles, summarize
from zbench.report.answer import answer_lines, effect_lines
from zbench.report.columns import screen_table
from zbench.report.roles import word
from zbench.report.screen import Screen, print_note, print_table
from zbench.report.text import axes_text, failure_text, outcome_text, plural, printable
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec

_OUTCOME_ORDER = ("ok", "oom", "timeout", "crashed", "invalid")
_MOST_ROWS = 500
"""Of a table that a person reads, the best first; to print more takes longer than to compute it."""

_MOST_RULED_OUT = 5
_RANK = re.compile(r"\brank \d+\b")
_SHOWN_WHERE_USED = ("peak_host_bytes", "of_compute", "bound", "outside")
_DROPPED_FIRST = ("median_step_s", "of_compute", "peak_host_bytes", "error_ratio", "spread", "outcome")

Line = tuple[str, str]
"""A heading, empty where the line belongs to the one above, and its text."""


def print_results(
    screen: Screen,
    records: Iterable[Record],
    objective: ObjectiveSpec,
    run_dir: Path | None = None,
    ranking: Ranking | None = None,
) -> None:
    """Print the table of configurations, the best marked, and notes on those that failed or differ.

    run_dir: where the logs are that the notes name. ranking: of these records, where it is known already.
    """
    summaries = in_order(summarize(records), objective)
    ranking = rank(summaries, objective) if ranking is None else ranking
    table = screen_table(summaries[:_MOST_ROWS], ranking, objective)
    unused = {"", "-", METRICS["peak_host_bytes"].format(0)}
    columns = [
        column
        for column in table.columns
        if column.name not in _SHOWN_WHERE_USED or {*map(column.text, table.rows)} - unused
    ]
    run = f" {shlex.quote(os.path.relpath(run_dir))}" if run_dir is not None else ""
    remedy = printable(f"`zbench show{run} --verbose`")
    table = replace(table, columns=columns)
    pinned = (objective.goals[0].metric, "verdict")
    print_table(screen, table, dropped_first=_DROPPED_FIRST, pinned=pinned, remedy=remedy)
    if rest := summaries[_MOST_ROWS:]:
        remedy = printable(f"`zbench show{run} --format csv` has all")
        print_note(screen, Text(f"{plural(len(rest), 'more configuration')}: {remedy}", "dim"))
    for line in notes(summaries, objective, ranking, run_dir):
        print_note(screen, line)


def in_order(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the configurations in the order of the first goal.

    Configurations outside a constraint or without a proof of correctness come after all that could be the
    best; those that failed come last.
    """
    summaries = list(summaries)
    goal = first_goal(summaries, objective)
    return sorted(
        summaries,
        key=lambda s: (_OUTCOME_ORDER.index(s.outcome), bool(obstacles(s, objective)), cost(s, goal)),
    )


def notes(
    summaries: Sequence[ConfigSummary],
    objective: ObjectiveSpec,
    ranking: Ranking,
    run_dir: Path | None = None,
) -> list[Text]:
    """Return the lines below the table. run_dir: where the logs are that they name."""
    return [
        *effect_lines(ranking, objective),
        *(
            Text.assemble(word(summary.verdict), f" {axes_text(summary.axes)}: {_difference(summary)}")
            for summary in summaries
            if summary.diagnosis is not None or summary.verdict in ("drifted", "wrong")
        ),
        *_failure_lines([summary for summary in summaries if summary.outcome != "ok"], run_dir),
        *(Text.assemble(("warning", "yellow"), f" {line}") for line in warning_lines(summaries)),
        *map(Text, filter(None, [open_question(summaries, ranking)])),
        *answer_lines(summaries, objective, ranking, run_dir),
    ]


def _difference(summary: ConfigSummary) -> str:
    """Return what is wrong or unchecked: by how much, where and from which step on it differs."""
    worst = summary.farthest
    parts = [printable(summary.diagnosis)] if summary.diagnosis else []
    if worst.error_ratio is not None:
        parts.append(f"error ratio {METRICS['error_ratio'].format(worst.error_ratio)}")
    parts += [f"worst parameter {printable(worst.worst_parameter)}"] if worst.worst_parameter else []
    if worst.first_differing_step is not None:
        parts.append(f"differs from step {worst.first_differing_step} on")
    return ", ".join(parts)


def warning_lines(summaries: Iterable[ConfigSummary]) -> list[str]:
    """Return each kind of warning once, and how many configurations have it.

    A warning's kind is its text before a colon; the rest is that of one of them.
    """
    kinds: dict[str, tuple[set[str], set[str]]] = {}
    for summary in summaries:
        for warning in summary.warnings:
            texts, trials = kinds.setdefault(warning.split(":")[0], (set(), set()))
            texts.add(warning)
            trials.add(summary.trial_id)
    return [
        f"{printable(max(texts, key=_numbers))} ({'up to this, in ' * (len(texts) > 1)}"
        f"{plural(len(trials), 'configuration')})"
        for texts, trials in kinds.values()
    ]


def _numbers(text: str) -> tuple[list[float], str]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)], text


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


def print_search(screen: Screen, document: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Print why the search stopped, the nearest miss, the Pareto front, and each axis's importance.

    document: what `search.json` holds.
    """
    by_id = {summary.trial_id: summary for summary in summarize(records)}
    for heading, text in _search_lines(document, by_id):
        start = (f"{heading} ", "bold") if heading else "  "
        screen.print(Text.assemble(start, printable(text)), soft_wrap=True)


def _search_lines(document: Mapping[str, Any], by_id: Mapping[str, ConfigSummary]) -> Iterator[Line]:
    yield "stopped:", str(document["stopped"])
    if (miss := document["nearest_miss"]) is not None and document["best"] is None:
        yield "nearest", f"{axes_text(miss['axes'])}, but {'; '.join(miss['obstacles'])}"
    front = [by_id[key] for key in document["pareto"] if key in by_id]
    if front:
        count = plural(len(front), "configuration")
        yield "Pareto front", f"{count} that no other beats in every objective:"
        yield from (("", axes_text(summary.axes)) for summary in front)
    if document["importance"]:
        shares = [f"{key} {share:.0%}" for key, share in document["importance"].items()]
        yield "what mattered", ", ".join(shares)
    ruled_out = document["hopeless"]
    if ruled_out:
        yield "not tried", f"{plural(len(ruled_out), 'point')} that the simulation rules out, such as:"
        for entry in ruled_out[:_MOST_RULED_OUT]:
            yield "", f"{axes_text(entry['point'])}: {entry['reason']}"
