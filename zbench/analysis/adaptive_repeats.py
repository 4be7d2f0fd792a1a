"""How often the configurations of a sweep are repeated. Pure.

With `run.separate` a sweep repeats until its leaders differ, or are equal within that fraction. After every
round, configurations that cannot be the best any more drop out (a race), by the bounds that are printed at
the end.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from zbench.analysis.ranking import FIRST_LOOK, Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, summarize
from zbench.spec.sweep import ObjectiveSpec


def contenders(records: Sequence[Record], objective: ObjectiveSpec) -> frozenset[str]:
    """Return the configurations that need another repeat before the question is answered: none when it is.

    Before the first look that is everyone who has no failure; later the leaders, up to `max_repeats` each.
    """
    summaries = [summary for summary in summarize(records) if summary.outcome == "ok"]
    asked = _asked(summaries)
    if asked is None:
        return frozenset()
    early = frozenset(s.trial_id for s in summaries if len(s.records) < FIRST_LOOK)
    if early:
        return early
    ranking = rank(summaries, objective, explains=False)
    if is_answered(ranking, asked):
        return frozenset()
    leaders = set(ranking.indistinguishable)
    return frozenset(s.trial_id for s in summaries if s.trial_id in leaders and len(s.records) < _most(s))


def is_answered(ranking: Ranking, tolerance: float) -> bool:
    """Say whether one leads alone, or all leaders are equal within `tolerance`."""
    if len(ranking.indistinguishable) <= 1:
        return True
    return ranking.equal_within is not None and ranking.equal_within <= tolerance


def open_question(summaries: Sequence[ConfigSummary], ranking: Ranking) -> str | None:
    """Return what `run.separate` could not decide within `max_repeats`, in words; None if it decided."""
    asked = _asked(summaries)
    if asked is None or is_answered(ranking, asked):
        return None
    near = "an unknown share" if ranking.equal_within is None else f"up to {ranking.equal_within:.1%}"
    return (
        f"undecided: the {len(ranking.indistinguishable)} leaders may differ by {near}, more than the "
        f"{asked:.1%} of run.separate; raise run.max_repeats and continue with --resume"
    )


def _most(summary: ConfigSummary) -> int:
    return int(summary.config["run"].get("max_repeats") or FIRST_LOOK)


def _asked(summaries: Sequence[ConfigSummary]) -> float | None:
    """Return `run.separate`, which all configurations of a sweep share."""
    runs: Iterator[dict[str, Any]] = (summary.config.get("run") or {} for summary in summaries)
    value = next(runs, {}).get("separate")
    return float(value) if value is not None else None
