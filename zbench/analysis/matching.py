"""Which trial of one run is which of another: the same configuration, not the same place in a list."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
