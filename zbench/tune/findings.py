"""What a search finds: the best after a final round, the front, what mattered, and the document of it all.

The best of many single measurements is partly the luckiest one. So it and those near it are measured again
with fresh repeats, in heats where that is possible. These join the earlier records; if they bring up another
configuration, it is measured too.
"""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from zbench.analysis.cells import cells_of
from zbench.analysis.ranking import by_figure, pareto_front, rank
from zbench.analysis.ratios import fitted
from zbench.errors import UsageError
from zbench.masking import MASK
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, first_goal, obstacles, summarize
from zbench.spec.metrics import Direction
from zbench.spec.sweep import ObjectiveSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.objective import History, directions_of, score

_FEWEST_REPEATS = 2
_MOST_CONTENDERS = 6
_MOST_TOGETHER, _NEAR = 4, 0.05
"""So many begin the final round together: the first two, and others that are as close to the first."""
_FEWEST_TRIALS, _FEWEST_PER_AXIS = 12, 4

Measure = Callable[[Sequence[TrialSpec], int], None]
"""Runs this repeat of each, in turns where that is possible, and keeps the records."""


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome: the best, and by which share the runner-up is worse in fresh repeats alone."""

    best: ConfigSummary | None
    runner_up: ConfigSummary | None = None
    lead: float | None = None


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search found. `front`: trial ids that nothing beats in every objective, best first."""

    final: Final
    stopped: str
    study: str
    front: list[str] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)
    predicted_oom: dict[str, str] = field(default_factory=dict)


def settle(
    records: Callable[[], Sequence[Record]],
    objective: ObjectiveSpec,
    measure: Measure,
    *,
    repeats: int,
) -> Final:
    """Measure the leaders again until the first two both have fresh repeats; return who won.

    records: all records on this kind of machine, the new ones too. repeats: fresh ones for each leader. Those
    that exist already (of a run that is resumed) are not measured again. So all who end in the final round
    have as many repeats.
    """
    repeat_range = range(1, max(_FEWEST_REPEATS, repeats) + 1)

    def is_settled(summary: ConfigSummary) -> bool:
        return {record.repeat for record in summary.records}.issuperset(repeat_range)

    finalists = _near(summarize(record for record in records() if record.repeat == 0), objective)
    while finalists:
        for repeat in repeat_range:
            measured = {record.trial_id for record in records() if record.repeat == repeat}
            missing = [_trial(summary) for summary in finalists if summary.trial_id not in measured]
            if missing:
                measure(missing, repeat)
        whole = {s.trial_id for s in summarize(records()) if is_settled(s)}  # others: as if not begun
        begun = [r for r in records() if r.repeat == 0 or r.trial_id in whole]
        leaders = by_figure(summarize(begun), objective)[: 2 if len(whole) < _MOST_CONTENDERS else 0]
        finalists = [summary for summary in leaders if not is_settled(summary)][:1]
    ranked = [summary for summary in by_figure(summarize(records()), objective) if is_settled(summary)]
    return _compared(ranked, objective) if len(ranked) > 1 else Final(ranked[0] if ranked else None)


def _near(summaries: Sequence[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return who is measured again: the first two, and others that are as close to the first."""
    ordered = by_figure(summaries, objective)
    costs = [cost(summary, first_goal(ordered, objective)) for summary in ordered[:_MOST_TOGETHER]]
    return ordered[: max(2, sum(one - costs[0] <= _NEAR * abs(costs[0]) for one in costs))]


def _trial(summary: ConfigSummary) -> TrialSpec:
    if MASK in json.dumps(summary.config):
        raise UsageError(f"{summary.trial_id}: its secrets are masked; start a new search")
    return TrialSpec.model_validate({**summary.config, "axes": summary.axes})


def _compared(settled: Sequence[ConfigSummary], objective: ObjectiveSpec) -> Final:
    """Return who won by fresh repeats alone, as the ranking estimates it."""
    fresh = [replace(s, records=tuple(r for r in s.records if r.repeat > 0)) for s in settled]
    cells = cells_of(fresh, first_goal(settled, objective))
    if not cells:
        return Final(settled[0], settled[1])
    fit = fitted(cells)
    estimates = dict(zip(fit.rows, fit.estimates.tolist(), strict=True))
    ordered = sorted(settled, key=lambda summary: estimates.get(summary.trial_id, math.inf))
    first, second = (estimates.get(summary.trial_id) for summary in ordered[:2])
    lead = None if first is None or second is None else math.expm1(second - first)
    return Final(ordered[0], ordered[1], lead)


def front(records: Iterable[Record], objective: ObjectiveSpec) -> list[str]:
    """Return the feasible configurations that nothing beats in every objective; empty for a single one."""
    scores = {summary.trial_id: score(summary, objective) for summary in summarize(records)}
    values = {key: one.values for key, one in scores.items() if one.values and one.miss == 0}
    return pareto_front(values, directions_of(objective)) if len(objective.goals) > 1 else []


def importance(history: History, direction: Direction) -> dict[str, float]:
    """Return axis -> share of the variation of the first objective, the largest first; they add up to 1.

    By Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023), over the trials that finished. Empty where they are
    too few (fewer than 12, or than 4 per axis) or all alike: a share estimated from them would be noise.
    """
    trials = [trial for trial in history if trial.state == TrialState.COMPLETE and trial.params]
    axes = {name for trial in trials for name in trial.params}
    values = {trial.values[0] for trial in trials}
    if len(trials) < max(_FEWEST_TRIALS, _FEWEST_PER_AXIS * len(axes)) or len(values) < 2:
        return {}
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler())
    for trial in trials:
        params, distributions = trial.params, trial.distributions
        study.add_trial(create_trial(params=params, distributions=distributions, value=trial.values[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {key: value for key, value in shares.items() if value == value}


def search_document(
    outcome: SearchOutcome, objective: ObjectiveSpec, records: Iterable[Record]
) -> dict[str, Any]:
    """Return the findings as plain JSON values, as `search.json` keeps them and `--json` prints them.

    Whether the best is one is said by the ranking that a sweep uses, over all records: `separated` from all
    others, or one of those that are `indistinguishable`. `nearest_miss` is null where there is a best.
    """
    summaries = summarize(records)
    final = outcome.final
    ranking = rank(summaries, objective)
    best, other = final.best, final.runner_up
    return {
        "schema_version": 1,
        "study": outcome.study,
        "stopped": outcome.stopped,
        "best": best.trial_id if best else None,
        "runner_up": other.trial_id if other else None,
        "lead": final.lead,
        "separated": best is not None and ranking.best == best.trial_id,
        "indistinguishable": list(ranking.indistinguishable),
        "pareto": outcome.front,
        "importance": outcome.importance,
        "hopeless": [{"point": json.loads(key), "reason": why} for key, why in outcome.predicted_oom.items()],
        "nearest_miss": None if best else nearest_miss(summaries, objective),
    }


def nearest_miss(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> dict[str, Any] | None:
    """Return the configuration that is nearest to being feasible and correct, and what keeps it from that."""
    tried = [summary for summary in summaries if summary.outcome != "invalid"]
    if not tried:
        return None
    nearest = min(tried, key=lambda summary: score(summary, objective).miss)
    return {"trial_id": nearest.trial_id, "axes": nearest.axes, "obstacles": obstacles(nearest, objective)}
