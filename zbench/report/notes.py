"""What a table cannot say: the best in a sentence, why configurations failed or differ, warnings."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from zbench.record.summary import ConfigSummary, obstacles
from zbench.report.text import OUTCOME_STYLE, VERDICT_STYLE, axes_text, plural, rate_text, ratio_text
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec


def notes(
    summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, winner: ConfigSummary | None
) -> list[Text]:
    """Return the lines below the table."""
    found = [_best_line(summaries, objective, winner)]
    for summary in summaries:
        if summary.verdict in ("drifted", "wrong"):
            word = (summary.verdict, VERDICT_STYLE[summary.verdict])
            found.append(Text.assemble(word, f" {axes_text(summary.axes)}: {difference_text(summary)}"))
    for summary in summaries:
        if summary.outcome not in ("ok", "invalid") and summary.error is not None:
            log = f" (log: {summary.error.log})" if summary.error.log else ""
            text = f" {axes_text(summary.axes)}: {summary.error.message}{log}"
            found.append(Text.assemble((summary.outcome, OUTCOME_STYLE[summary.outcome]), text))
    found += _invalid_lines(summaries)
    found += [Text.assemble(("warning", "yellow"), f" {line}") for line in warning_lines(summaries)]
    return found


def difference_text(summary: ConfigSummary) -> str:
    """Return by how much, where and since when a configuration differs from the reference."""
    worst = max(summary.ok, key=lambda record: record.correctness.error_ratio or 0).correctness
    parts = [f"error ratio {ratio_text(worst.error_ratio)}"] if worst.error_ratio is not None else []
    parts += [f"worst parameter {worst.worst_parameter}"] if worst.worst_parameter else []
    if worst.first_differing_step is not None:
        parts.append(f"differs from step {worst.first_differing_step} on")
    return ", ".join(parts)


def warning_lines(summaries: Iterable[ConfigSummary]) -> list[str]:
    """Return each kind of warning (its words up to a colon) once, and how many configurations have it."""
    counts: dict[str, int] = {}
    for summary in summaries:
        for kind in dict.fromkeys(warning.split(":")[0] for warning in summary.warnings):
            counts[kind] = counts.get(kind, 0) + 1
    return [f"{kind} ({plural(count, 'configuration')})" for kind, count in counts.items()]


def _best_line(
    summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, winner: ConfigSummary | None
) -> Text:
    if winner is not None:
        goal = objective.goals[0]
        figure = METRICS[goal.metric].format(winner.metric(goal.metric))
        if goal.metric == "tokens_per_s":
            figure = f"{rate_text(winner.number(goal.metric))} tokens/s"
        return Text.assemble(
            ("* best", "bold green"), f" {axes_text(winner.axes)}: {figure}, {winner.verdict}"
        )
    if not any(summary.ok for summary in summaries):
        return Text("no best: no configuration ended well")
    reasons = dict.fromkeys(reason for s in summaries if s.ok for reason in obstacles(s, objective))
    if list(reasons) == ["unchecked"]:
        return Text("no best: nothing was verified, and only a correct configuration can be the best")
    why = "; ".join(list(reasons)[:3])
    return Text(f"no best: no configuration is both correct and within the constraints ({why})")


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
