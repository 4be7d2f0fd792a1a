"""How often the configurations of a sweep are repeated, and how long that will take. Pure.

With `run.separate` a sweep repeats until its leaders are apart, or equal within that share.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zbench.analysis.ranking import FIRST_LOOK, Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, summarize
from zbench.spec.sweep import ObjectiveSpec
from zbench.spec.trial import TrialSpec


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
    ranking = rank(summaries, objective)
    if is_answered(ranking, asked):
        return frozenset()
    leaders = set(ranking.indistinguishable)
    return frozenset(s.trial_id for s in summaries if s.trial_id in leaders and len(s.records) < _most(s))


def is_answered(ranking: Ranking, wanted: float) -> bool:
    """Say whether one leads alone, or all leaders are equal within `wanted`."""
    if len(ranking.indistinguishable) <= 1:
        return True
    return ranking.equal_within is not None and ranking.equal_within <= wanted


def open_question(summaries: Sequence[ConfigSummary], ranking: Ranking) -> str | None:
    """Return what `run.separate` could not settle within `max_repeats`, in words; None where all is told."""
    asked = _asked(summaries)
    if asked is None or is_answered(ranking, asked):
        return None
    near = "an unknown share" if ranking.equal_within is None else f"up to {ranking.equal_within:.1%}"
    return (
        f"left open: the {len(ranking.indistinguishable)} leaders may differ by {near}, more than the "
        f"{asked:.1%} of run.separate; raise run.max_repeats and continue with --resume"
    )


def _most(summary: ConfigSummary) -> int:
    return int(summary.config["run"].get("max_repeats") or FIRST_LOOK)


def _asked(summaries: Sequence[ConfigSummary]) -> float | None:
    """Return `run.separate`, which all configurations of a sweep share."""
    runs: Iterator[dict[str, Any]] = (summary.config.get("run") or {} for summary in summaries)
    value = next(runs, {}).get("separate")
    return float(value) if value is not None else None


@dataclass(frozen=True, slots=True)
class Prediction:
    """seconds: of all repeats, references left out. known: configurations that were measured before."""

    seconds: float
    known: int


def predict(trials: Iterable[TrialSpec], earlier: Iterable[Record]) -> Prediction | None:
    """Return how long the repeats of these trials will take one after another, None where nothing is known.

    A configuration takes the median of its own earlier repeats; one that was never measured takes the median
    of those that were. Repeats that `run.precision` or `run.separate` may add are not counted.
    """
    seconds: dict[str, list[float]] = {}
    for record in earlier:
        if record.elapsed_s is not None:
            seconds.setdefault(record.trial_id, []).append(record.elapsed_s)
    trials = list(trials)
    own = {t.trial_id: statistics.median(seconds[t.trial_id]) for t in trials if t.trial_id in seconds}
    if not own:
        return None
    usual = statistics.median(own.values())
    return Prediction(sum(own.get(t.trial_id, usual) * t.run.repeats for t in trials), len(own))
