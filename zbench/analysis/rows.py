"""One configuration in both runs: how it is found in each, and the one answer it gets. Pure.

Correctness comes first, then failures, then figures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from zbench.analysis.decision import Decision
from zbench.analysis.exact import ExactChange, exact_changes, exact_details
from zbench.analysis.settings import Settings
from zbench.record.record import VERDICT_ORDER
from zbench.record.summary import ConfigSummary
from zbench.spec.keys import leaves
from zbench.spec.trial import NOT_IDENTITY

_NOT_COMPARED = frozenset({f"run.{key}" for key in NOT_IDENTITY} | {"verify.mode"})
"""Keys that change how often or how closely a trial is measured, not what it computes."""


@dataclass(frozen=True, slots=True)
class Match:
    """One configuration in both runs; `note` says what is not quite alike."""

    base: ConfigSummary
    head: ConfigSummary
    note: str = ""


@dataclass(frozen=True, slots=True)
class Matching:
    """Configurations in both runs, and those in only one."""

    matches: tuple[Match, ...]
    missing: tuple[ConfigSummary, ...]
    added: tuple[ConfigSummary, ...]


def match_trials(base: Sequence[ConfigSummary], head: Sequence[ConfigSummary]) -> Matching:
    """Match trials by id, and what is left by axes where every key that both sides know has the same value.

    A version of zbench that knows a key more gives every configuration another id; the second rule keeps such
    versions comparable, and the match says which keys only one side has.
    """
    heads = {trial.trial_id: trial for trial in head}
    pairs = {trial.trial_id: heads.pop(trial.trial_id, None) for trial in base}
    by_axes = _unique_by_axes(list(heads.values()))
    alone = _unique_by_axes([trial for trial in base if pairs[trial.trial_id] is None])
    notes: dict[str, str] = {}
    for axes, trial in alone.items():
        other = by_axes.get(axes)
        note = None if other is None else _difference_note(trial.config, other.config)
        if other is not None and note is not None:
            pairs[trial.trial_id] = heads.pop(other.trial_id)
            notes[trial.trial_id] = note
    matches = tuple(
        Match(trial, other, notes.get(trial.trial_id, ""))
        for trial in base
        if (other := pairs[trial.trial_id]) is not None
    )
    missing = tuple(trial for trial in base if pairs[trial.trial_id] is None)
    return Matching(matches, missing, tuple(heads.values()))


def _unique_by_axes(trials: Sequence[ConfigSummary]) -> dict[str, ConfigSummary]:
    keyed: dict[str, list[ConfigSummary]] = {}
    for trial in trials:
        keyed.setdefault(json.dumps(dict(trial.axes), sort_keys=True, default=str), []).append(trial)
    return {key: group[0] for key, group in keyed.items() if len(group) == 1}


def _difference_note(base: Mapping[str, Any], head: Mapping[str, Any]) -> str | None:
    """Say which keys only one side has; None where a key of both has two values: no match."""
    a, b = dict(leaves(base)), dict(leaves(head))
    if any(a[key] != b[key] for key in a.keys() & b.keys() if key not in _NOT_COMPARED):
        return None
    sides = (("only in base", a.keys() - b.keys()), ("only in head", b.keys() - a.keys()))
    return "; ".join(f"{side}: {', '.join(sorted(keys))}" for side, keys in sides if keys)


def fails_more(base: ConfigSummary, head: ConfigSummary, alpha: float) -> bool:
    """Say whether head fails where base did not, fails always, or fails more often at level `alpha`.

    A failure that base never had, or a head without a single finished repeat, needs no test. Where both
    fail now and then, it is Fisher's exact test, one-sided (`scipy.stats.fisher_exact`).
    """
    if head.outcome in ("ok", "invalid") or not base.ok:
        return False
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
