"""One configuration in both runs, and the one answer it gets: correctness first, then failures, figures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from zbench.analysis.decision import Decision
from zbench.analysis.exact import ExactChange, exact_changes, exact_details
from zbench.analysis.matching import Match
from zbench.analysis.outcomes import fails_more
from zbench.analysis.settings import Settings
from zbench.record.record import VERDICT_ORDER
from zbench.record.summary import ConfigSummary

RowAnswer = Literal[
    "incorrect", "failed", "regression", "suspected", "unchecked", "inconclusive", "unmeasured", "pass"
]
ROW_ORDER: tuple[RowAnswer, ...] = get_args(RowAnswer)


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration in both runs. `step_time` is None where a side has no finished repeat.

    `unmeasured` answers where neither side has one: both ran out of memory, say, and nothing changed.
    `exact` holds the same metrics for every row, `details` what changed behind them.
    """

    match: Match
    step_time: Decision | None
    exact: tuple[ExactChange, ...]
    answer: RowAnswer
    details: tuple[ExactChange, ...] = ()

    @property
    def base(self) -> ConfigSummary:
        """Return the trial in the base run."""
        return self.match.base

    @property
    def head(self) -> ConfigSummary:
        """Return the trial in the head run."""
        return self.match.head

    @property
    def verdict_lowered(self) -> bool:
        """Say whether head is proved less than base was: a lower verdict, or none where base had one."""
        return VERDICT_ORDER.index(self.head.verdict) < VERDICT_ORDER.index(self.base.verdict)

    @property
    def exact_regressions(self) -> tuple[ExactChange, ...]:
        """Return the exact figures that grew by more than their thresholds."""
        return tuple(one for one in (*self.exact, *self.details) if one.answer == "regression")


def judged(match: Match, step_time: Decision | None, settings: Settings) -> Row:
    """Return the row of one configuration, with its answer."""
    sides: tuple[ConfigSummary, ConfigSummary, Mapping[str, float]]
    sides = (match.base, match.head, settings.thresholds)
    row = Row(match, step_time, exact_changes(*sides), "pass", exact_details(*sides))
    return replace(row, answer=_answer(row, settings.alpha))


def is_incorrect(trial: ConfigSummary) -> bool:
    """Say whether a trial was proved to compute something else."""
    return trial.verdict in ("drifted", "wrong")


def _answer(row: Row, alpha: float) -> RowAnswer:
    """Return the gravest thing that can be said of a configuration."""
    timed = row.step_time.answer if row.step_time is not None else None
    if is_incorrect(row.head):
        return "incorrect"
    if fails_more(row.base, row.head, alpha):
        return "failed"
    if timed == "regression" or row.exact_regressions:
        return "regression"
    if not row.base.ok and not row.head.ok:
        return "unmeasured"
    if timed == "suspected":
        return "suspected"
    if row.head.is_unjudged or (row.verdict_lowered and row.head.verdict == "unchecked"):
        return "unchecked"
    return "inconclusive" if timed == "inconclusive" else "pass"
