"""The table of a run: one row a configuration, best first, each with its verdict; then what needs words."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, best, cost, obstacles, summarize, varied_keys
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec
from zbench.units import format_bytes, format_seconds

VERDICT_STYLE = {
    "identical": "green",
    "equivalent": "green",
    "drifted": "bold yellow",
    "wrong": "bold red",
    "unchecked": "dim",
}
OUTCOME_STYLE = {"ok": "green", "oom": "red", "timeout": "red", "crashed": "bold red", "invalid": "dim"}
_NARROW = 100
_OUTCOME_ORDER = ("ok", "oom", "timeout", "crashed", "invalid")


def print_results(console: Console, records: Iterable[Record], objective: ObjectiveSpec) -> None:
    """Print the table of all configurations, the best marked, and notes on those that failed or differ."""
    summaries = ranked(summarize(records), objective)
    winner = best(summaries, objective)
    console.print(results_table(summaries, winner, plain=not console.is_terminal, width=console.width))
    for line in notes(summaries, objective, winner):
        console.print(line, soft_wrap=not console.is_terminal)


def ranked(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the configurations in the order of the first goal, those that did not end well last."""
    goal = objective.goals[0]
    return sorted(summaries, key=lambda s: (_OUTCOME_ORDER.index(s.outcome), cost(s, goal)))


def results_table(
    summaries: Sequence[ConfigSummary], winner: ConfigSummary | None, *, plain: bool, width: int
) -> Table:
    """Return the table; plain (for pipes): no lines, one-line headers. Narrow terminals get fewer columns."""
    keys = varied_keys(summaries)
    narrow = width < _NARROW and not plain
    columns = [column for column in _COLUMNS if column in _ESSENTIAL or not narrow]
    if not any(
        summary.values("peak_host_bytes") and max(summary.values("peak_host_bytes")) for summary in summaries
    ):
        columns = [column for column in columns if column != "host mem"]
    table = Table(box=None if plain else box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for key in keys:
        table.add_column(key if plain else key.replace("_", "\n"), justify="right", overflow="fold")
    for column in columns:
        justify: Any = "left" if column in ("outcome", "verdict") else "right"
        table.add_column(column if plain else column.replace(" ", "\n"), justify=justify, no_wrap=True)
    for summary in summaries:
        is_best = winner is not None and summary.trial_id == winner.trial_id
        axes = [value_text(summary.axes[key]) if key in summary.axes else "-" for key in keys]
        cells = [_cell(column, summary) for column in columns]
        table.add_row("*" if is_best else "", *axes, *cells, style="bold" if is_best else "")
    return table


def notes(
    summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, winner: ConfigSummary | None
) -> list[Text]:
    """Return what the table cannot say: the best in a sentence, failures, differences, invalid points."""
    found = [_best_line(summaries, objective, winner)]
    for summary in summaries:
        if summary.verdict in ("drifted", "wrong"):
            found.append(
                Text.assemble((summary.verdict, VERDICT_STYLE[summary.verdict]), f" {_difference(summary)}")
            )
    for summary in summaries:
        if summary.outcome not in ("ok", "invalid") and summary.error is not None:
            log = f" (log: {summary.error.log})" if summary.error.log else ""
            text = f" {axes_text(summary.axes)}: {summary.error.message}{log}"
            found.append(Text.assemble((summary.outcome, OUTCOME_STYLE[summary.outcome]), text))
    found += _invalid_lines(summaries)
    found += [Text.assemble(("warning", "yellow"), f" {line}") for line in warning_lines(summaries)]
    return found


def warning_lines(summaries: Iterable[ConfigSummary]) -> list[str]:
    """Return each distinct warning once, with how many configurations it concerns."""
    counts: dict[str, int] = {}
    for summary in summaries:
        kinds = {warning.split(":")[0]: warning for warning in summary.warnings}
        for warning in kinds.values():
            counts[warning.split(":")[0]] = counts.get(warning.split(":")[0], 0) + 1
    return [f"{text} ({count} configuration{'s' * (count > 1)})" for text, count in counts.items()]


def axes_text(axes: dict[str, Any]) -> str:
    """Return a point as `zero_stage=1 offload_optimizer=cpu`."""
    return " ".join(f"{key}={value_text(value)}" for key, value in axes.items()) or "(the one configuration)"


def value_text(value: Any) -> str:
    """Return an axis value as a sweep file would spell it."""
    return value if isinstance(value, str) else json.dumps(value)


def rate_text(value: float | None) -> str:
    """Return tokens a second: whole numbers with separators, three digits where that is less."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread_text(value: float | None) -> str:
    return "-" if value is None else f"±{value:.1%}"


def _seconds_text(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _ratio_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.3g}"


def _bytes_text(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)


_COLUMNS: dict[str, Callable[[ConfigSummary], Text | str]] = {
    "outcome": lambda s: Text(s.outcome, OUTCOME_STYLE[s.outcome]),
    "tokens/s": lambda s: rate_text(s.number("tokens_per_s")),
    "spread": lambda s: _spread_text(s.spread("tokens_per_s")),
    "median step": lambda s: _seconds_text(s.number("median_step_s")),
    "peak mem": lambda s: _bytes_text(s.number("peak_device_bytes")),
    "host mem": lambda s: _bytes_text(s.number("peak_host_bytes")),
    "verdict": lambda s: Text(s.verdict if s.ok else "-", VERDICT_STYLE[s.verdict]),
    "error ratio": lambda s: _ratio_text(s.number("error_ratio")),
}
_ESSENTIAL = {"outcome", "tokens/s", "spread", "peak mem", "verdict", "error ratio"}


def _cell(column: str, summary: ConfigSummary) -> Text | str:
    return _COLUMNS[column](summary)


def _best_line(
    summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, winner: ConfigSummary | None
) -> Text:
    if winner is not None:
        goal = objective.goals[0]
        value = METRICS[goal.metric].format(winner.metric(goal.metric))
        figure = (
            f"{rate_text(winner.number(goal.metric))} tokens/s" if goal.metric == "tokens_per_s" else value
        )
        text = f" {axes_text(winner.axes)}: {figure}, {winner.verdict}"
        return Text.assemble(("* best", "bold green"), text)
    reasons = dict.fromkeys(reason for s in summaries if s.ok for reason in obstacles(s, objective))
    if list(reasons) == ["unchecked"]:
        return Text("no best: nothing was verified (verify.mode: off), and only a correct row can be best")
    why = f" ({'; '.join(list(reasons)[:3])})" if reasons else ""
    return Text(f"no best: no configuration is both correct and within the constraints{why}")


def _difference(summary: ConfigSummary) -> str:
    worst = max(summary.ok, key=lambda r: r.correctness.error_ratio or 0)
    what = worst.correctness
    parts = [f"error ratio {_ratio_text(what.error_ratio)}"] if what.error_ratio is not None else []
    parts += [f"worst parameter {what.worst_parameter}"] if what.worst_parameter else []
    parts += (
        [f"differs from step {what.first_differing_step}"] if what.first_differing_step is not None else []
    )
    return f"{axes_text(summary.axes)}: {', '.join(parts)}"


def _invalid_lines(summaries: Sequence[ConfigSummary]) -> list[Text]:
    by_reason: dict[str, list[ConfigSummary]] = {}
    for summary in summaries:
        if summary.outcome == "invalid" and summary.error is not None:
            by_reason.setdefault(summary.error.message, []).append(summary)
    found = []
    for reason, group in by_reason.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        found.append(Text.assemble(("invalid", "dim"), f" {axes_text(group[0].axes)}{more}: {reason}"))
    return found
