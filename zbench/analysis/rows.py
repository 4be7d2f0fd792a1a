"""One configuration in both runs: how it is matched, and the one answer it gets. Pure.

Correctness comes first, then failures, then figures.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from zbench.analysis.decision import Decision
from zbench.analysis.exact import ExactAnswer, ExactChange, exact_changes, exact_details
from zbench.analysis.settings import Settings
from zbench.record.summary import ConfigSummary, is_incorrect
from zbench.spec.keys import leaves
from zbench.spec.metrics import VERDICTS
from zbench.spec.trial import NOT_IDENTITY

_NOT_COMPARED = frozenset({f"run.{key}" for key in NOT_IDENTITY} | {"verify.mode"})
"""Keys that change how often or how closely a trial is measured, not what it computes."""


Pair = tuple[ConfigSummary, ConfigSummary]
"""One configuration in base and in head."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Configurations in both runs, and those in only one."""

    pairs: tuple[Pair, ...]
    missing: tuple[ConfigSummary, ...]
    added: tuple[ConfigSummary, ...]


def match_trials(base: Sequence[ConfigSummary], head: Sequence[ConfigSummary]) -> Matching:
    """Match configurations by trial ID, and the remaining ones by the keys that change what they compute.

    The trial ID also holds `verify.mode`, so a run without verification is compared by the second rule.
    """
    heads = {trial.trial_id: trial for trial in head}
    others = {trial.trial_id: heads.pop(trial.trial_id, None) for trial in base}
    ids_by_computation = {_computation(trial): trial.trial_id for trial in heads.values()}
    for trial in base:
        if others[trial.trial_id] is None:
            others[trial.trial_id] = heads.pop(ids_by_computation.get(_computation(trial), ""), None)
    pairs = tuple((trial, other) for trial in base if (other := others[trial.trial_id]) is not None)
    missing = tuple(trial for trial in base if others[trial.trial_id] is None)
    return Matching(pairs, missing, tuple(heads.values()))


def _computation(trial: ConfigSummary) -> str:
    keys = {key: value for key, value in leaves(trial.config) if key not in _NOT_COMPARED}
    return json.dumps([dict(trial.axes), keys], sort_keys=True, default=str)


def fails_more(base: ConfigSummary, head: ConfigSummary, alpha: float) -> bool:
    """Say whether head fails where base did not, fails always, or fails more often at level `alpha`.

    A failure that base never had, or a head without a single finished repeat, needs no test. Where both
    fail now and then, it is Fisher's exact test, one-sided (`scipy.stats.fisher_exact`). Where neither ever
    finishes, another way to fail is a failure of head's own.
    """
    if head.outcome == "ok" or (head.outcome == "invalid" and not base.ok):
        return False
    if not base.ok:
        return not head.ok and head.outcome != base.outcome
    if base.outcome == "ok" or not head.ok:
        return True
    from scipy.stats import fisher_exact  # slow to import, and hardly ever needed

    sides = [(len(trial.records) - len(trial.ok), len(trial.ok)) for trial in (head, base)]
    return bool(fisher_exact(sides, alternative="greater").pvalue <= alpha)


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

    base: ConfigSummary
    head: ConfigSummary
    step_time: Decision | None
    exact: tuple[ExactChange, ...]
    answer: RowAnswer
    details: tuple[ExactChange, ...] = ()

    @property
    def lost_repeats(self) -> int:
        """Return how many repeats head lacks of those that it was to measure and base has."""
        planned_repeats = (self.head.config.get("run") or {}).get("repeats")
        most = min(planned_repeats if isinstance(planned_repeats, int) else 0, len(self.base.records))
        return max(most - len(self.head.records), 0)

    @property
    def verdict_lowered(self) -> bool:
        """Say whether head is proved less than base was: a lower verdict, or none where base had one."""
        return VERDICTS.index(self.head.verdict) < VERDICTS.index(self.base.verdict)

    def exact_with(self, answer: ExactAnswer) -> tuple[ExactChange, ...]:
        """Return the exact figures that got this answer."""
        return tuple(one for one in (*self.exact, *self.details) if one.answer == answer)


def judged(pair: Pair, step_time: Decision | None, settings: Settings) -> Row:
    """Return the row of one configuration, with its answer."""
    exact, details = (find(*pair, settings.thresholds) for find in (exact_changes, exact_details))
    row = Row(*pair, step_time, exact, "pass", details)
    return replace(row, answer=_answer(row, settings.alpha))


def _answer(row: Row, alpha: float) -> RowAnswer:
    """Return the gravest answer for a configuration."""
    timed = row.step_time.answer if row.step_time is not None else None
    if is_incorrect(row.head):
        return "incorrect"
    if fails_more(row.base, row.head, alpha):
        return "failed"
    if timed == "regression" or row.exact_with("regression"):
        return "regression"
    if not row.base.ok and not row.head.ok:
        return "unmeasured"
    if timed == "suspected" or row.exact_with("suspected"):
        return "suspected"
    if row.head.is_unjudged or (row.verdict_lowered and row.head.verdict == "unchecked"):
        return "unchecked"
    if row.exact_with("unchecked") or row.lost_repeats:
        return "unchecked"
    return "inconclusive" if timed == "inconclusive" else "pass"
