"""What a search finds: the best after a final round, the front, what mattered, and the document of it all.

The best of many single measurements is partly the luckiest one. So it and its runner-up are measured again,
alternating, with fresh repeats, which join the earlier record; if that brings up a third configuration, it is
measured too.
"""

import json
import random
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from zbench.analysis.ranking import by_figure, pareto_front, rank
from zbench.errors import UsageError
from zbench.record.record import Record
from zbench.record.secrets import MASK
from zbench.record.summary import ConfigSummary, first_goal, obstacles, summarize
from zbench.spec.metrics import Direction
from zbench.spec.sweep import ObjectiveSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.objective import History, directions_of, relative, score

_FEWEST_REPEATS = 2
_MOST_CONTENDERS = 6
_FEWEST_TRIALS, _FEWEST_PER_AXIS = 12, 4

Measure = Callable[[TrialSpec, int], Record]
"""Runs a repeat, keeps its record, returns it."""


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome: the best, whom it beat, and by which share of the objective in fresh repeats alone.

    clear: every fresh repeat of the best beats every one of the runner-up.
    """

    best: ConfigSummary | None
    runner_up: ConfigSummary | None = None
    lead: float | None = None
    clear: bool | None = None


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
    seed: int,
) -> Final:
    """Measure the leaders again until the first two both have fresh repeats; return who won.

    records: all records on this kind of machine, the new ones too. repeats: fresh ones for each leader. Those
    that exist already (of a run that is resumed) are not measured again.
    """
    wanted = range(1, max(_FEWEST_REPEATS, repeats) + 1)

    def is_settled(summary: ConfigSummary) -> bool:
        return {record.repeat for record in summary.records}.issuperset(wanted)

    contenders = by_figure(summarize(record for record in records() if record.repeat == 0), objective)[:2]
    for _ in range(_MOST_CONTENDERS - 1):
        for summary, repeat in _missing(contenders, records(), wanted, seed):
            if MASK in json.dumps(summary.config):
                raise UsageError(f"{summary.trial_id}: its secrets are masked; start a new search")
            measure(TrialSpec.model_validate({**summary.config, "axes": summary.axes}), repeat)
        whole = {s.trial_id for s in summarize(records()) if is_settled(s)}  # others: as if not begun
        leaders = by_figure(
            summarize(r for r in records() if r.repeat == 0 or r.trial_id in whole), objective
        )[:2]
        contenders = [summary for summary in leaders if not is_settled(summary)][:1]
        if not contenders:
            break
    ranked = [summary for summary in by_figure(summarize(records()), objective) if is_settled(summary)]
    if len(ranked) < 2:
        return Final(ranked[0] if ranked else None)
    return _compared(ranked[0], ranked[1], objective)


def _compared(best: ConfigSummary, other: ConfigSummary, objective: ObjectiveSpec) -> Final:
    goal = first_goal((best, other), objective)
    sign = 1 if goal.direction == "maximize" else -1
    fresh = [replace(s, records=tuple(r for r in s.records if r.repeat > 0)) for s in (best, other)]
    ahead, behind = ([sign * value for value in s.values(goal.metric)] for s in fresh)
    if not ahead or not behind:
        return Final(best, other)
    middle = statistics.median(behind)
    lead = relative(statistics.median(ahead) - middle, middle)
    return Final(best, other, lead, min(ahead) > max(behind))


def _missing(
    contenders: Sequence[ConfigSummary], records: Sequence[Record], wanted: range, seed: int
) -> list[tuple[ConfigSummary, int]]:
    """Return the fresh repeats to run, round by round, in an order within each round that is drawn anew."""
    known = {(record.trial_id, record.repeat) for record in records}
    missing = [(s, n) for s in contenders for n in wanted if (s.trial_id, n) not in known]
    return sorted(missing, key=lambda m: (m[1], random.Random(f"{seed}/{m[0].trial_id}/{m[1]}").random()))


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
    final, ranking = outcome.final, rank(summaries, objective)
    best, other = final.best, final.runner_up
    return {
        "schema_version": 1,
        "study": outcome.study,
        "stopped": outcome.stopped,
        "best": best.trial_id if best else None,
        "runner_up": other.trial_id if other else None,
        "lead": final.lead,
        "clear": final.clear,
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
