"""The notes below a table: the best configuration, why others failed or differ, and warnings."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from zbench.analysis.adaptive_repeats import open_question
from zbench.analysis.ranking import Ranking, recommended_why
from zbench.record.summary import ConfigSummary, obstacles
from zbench.report.text import (
    OUTCOME_STYLE,
    VERDICT_STYLE,
    axes_text,
    outcome_text,
    plural,
    printable,
    printable_lines,
    rate_text,
    ratio_text,
)
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec

_RANK = re.compile(r"\brank \d+\b")


def notes(
    summaries: Sequence[ConfigSummary],
    objective: ObjectiveSpec,
    ranking: Ranking,
    run_dir: Path | None = None,
) -> list[Text]:
    """Return the lines below the table. run_dir: where the logs are that they name."""
    found = _best_lines(summaries, objective, ranking)
    left_open = open_question(summaries, ranking)
    found += [Text(left_open)] if left_open else []
    for summary in summaries:
        if summary.verdict in ("drifted", "wrong"):
            word = (summary.verdict, VERDICT_STYLE[summary.verdict])
            found.append(Text.assemble(word, f" {axes_text(summary.axes)}: {difference_text(summary)}"))
    found += _failure_lines([s for s in summaries if s.outcome not in ("ok", "invalid")], run_dir)
    found += _failure_lines([s for s in summaries if s.outcome == "invalid"], run_dir)
    found += [Text.assemble(("warning", "yellow"), f" {line}") for line in warning_lines(summaries)]
    return found


def difference_text(summary: ConfigSummary) -> str:
    """Return by how much, where and since when a configuration differs from the reference."""
    worst = summary.farthest
    parts = [f"error ratio {ratio_text(worst.error_ratio)}"] if worst.error_ratio is not None else []
    parts += [f"worst parameter {printable(worst.worst_parameter)}"] if worst.worst_parameter else []
    if worst.first_differing_step is not None:
        parts.append(f"differs from step {worst.first_differing_step} on")
    return ", ".join(parts)


def warning_lines(summaries: Iterable[ConfigSummary]) -> list[str]:
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
        said = f"{axes_text(chosen.axes)}: {_figure(chosen, objective)}, {chosen.verdict}"
        if ranking.best is not None:
            return [Text.assemble(("* best", "bold green"), f" {said}")]
        within = ranking.equal_within
        near = f" (equal within {within:.1%})" if within is not None else ""
        count = len(ranking.indistinguishable)
        leaders = f": one of {count} that cannot be told apart{near}"
        why = recommended_why([s for s in summaries if s.trial_id in ranking.indistinguishable])
        return [Text.assemble(("≈ best", "bold green"), leaders), Text(f"  recommended {why}: {said}")]
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
        by_reason.setdefault((outcome_text(summary), _RANK.sub("", failure_text(summary))), []).append(
            summary
        )
    found = []
    for (outcome, _), (first, *others) in by_reason.items():
        more = f" and {len(others)} more" if others else ""
        log = first.error.log if first.error is not None else None
        where = f" (log: {log_path(log, run_dir)})" if log else ""
        text = f" {axes_text(first.axes)}{more}: {failure_text(first)}{where}"
        found.append(Text.assemble((outcome, OUTCOME_STYLE[outcome]), text))
    return found


def failure_text(summary: ConfigSummary) -> str:
    """Return the whole message of a failed configuration, also where its record has none."""
    message = summary.error.message.strip() if summary.error is not None else ""
    return printable_lines(message) or "no message was recorded"
