"""Which configurations lead: the best, those that cannot be told from it, the recommended one, and the rest.

The one place that decides this; whatever prints, exports or searches asks `rank`. Multiple comparisons with
the best (Hsu, "Constrained simultaneous confidence intervals for multiple comparisons with the best", Annals
of Statistics 12, 1984) on the logarithm of the objective, paired by round: each round measures every
configuration once, so what the machine did meanwhile strikes all alike and cancels in differences. A
configuration leads unless another is better by more than Dunnett's one-sided critical difference; one that
leads alone is the best. Among equals one is named with probability `alpha` at most: Hsu's "best" allows a
tie, so each side has half of `alpha` here. scipy's `dunnett` and `tukey_hsd` are for unpaired samples, and
give p-values and not the difference.
"""

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from zbench.analysis.trials import mean_log
from zbench.errors import UsageError
from zbench.record.record import Heat, Record
from zbench.record.store import SPEC
from zbench.record.summary import ConfigSummary, cost, first_goal, obstacles
from zbench.spec.engine import ALONE_KEYS
from zbench.spec.load import recorded_trials
from zbench.spec.metrics import STEP_TIMES, TIMED, Direction, Goal, metric_named
from zbench.spec.sweep import ObjectiveSpec
from zbench.units import format_bytes

ALPHA = 0.01
FIRST_LOOK = 3
"""Rounds before the first look of a sweep that repeats until its leaders are apart: fewer show no spread."""
_NOTHING = 1e-99  # stands for a figure of 0 on the log scale
_WIDEST_BOUND, _FAR = 1.0, 100.0  # what is said of equals; a gap that only a figure of 0 makes
_NEAR = math.log(1.05)
_PEAKS = ("peak_device_bytes", "peak_host_bytes", "peak_rss_bytes")


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a sweep's records say of its feasible and correct configurations, by trial id.

    best: the one that is separated from all others, if there is one. indistinguishable: the leaders that
    cannot be told apart (the best alone, where there is one). recommended: one of the leaders all the same,
    and why, in words that follow its name. worse_by: of each other feasible configuration, by which
    fraction at least it is worse than the best (0 where that is not known). equal_within: the leaders are
    this close, as a fraction; None for a bound above 100 %, which bounds nothing. pending: configurations of
    the sweep that have not run; while there are any, nothing leads.
    """

    best: str | None = None
    indistinguishable: tuple[str, ...] = ()
    recommended: str | None = None
    worse_by: Mapping[str, float] = field(default_factory=dict)
    equal_within: float | None = None
    why: str = ""
    pending: int = 0

    @property
    def tied(self) -> str:
        """Return with how many others the recommended one is tied, in words; empty where it is the best."""
        others = len(self.indistinguishable) - 1
        return f"tied with {others} other{'s' * (others > 1)}" if others > 0 else ""

    def document(self) -> dict[str, Any]:
        """Return the keys of a `--json` document that say who leads."""
        return {
            "best": self.best,
            "indistinguishable": list(self.indistinguishable),
            "recommended": self.recommended,
            "worse_by": dict(self.worse_by),
        }

    def mark(self, trial_id: str) -> str:
        """Return `*` for the best, `≈` for each of several leaders (`≈*` the recommended), else nothing."""
        if trial_id == self.best:
            return "*"
        tied = "≈" if trial_id in self.indistinguishable else ""
        return f"{tied}*" if trial_id == self.recommended else tied


def rank(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec, alpha: float | None = None) -> Ranking:
    """Return the ranking by the objective's first goal; configurations with obstacles take no part.

    alpha: one-sided error of naming a best where equals lead; by default 1 %, shared out over the looks of
    a sweep that repeats until its leaders are apart (`run.separate`).
    """
    summaries = list(summaries)
    goal = first_goal(summaries, objective)
    able = sorted(candidates(summaries, objective), key=lambda s: s.number("mean_step_s") or math.inf)
    if not able:
        return Ranking()
    first = able[0]
    if len(able) == 1:
        return Ranking(first.trial_id, (first.trial_id,), first.trial_id)
    from zbench.analysis.multiple_comparisons import Comparisons  # imports scipy, which one row does not need

    level = alpha if alpha is not None else level_of_looks(first.config, ALPHA)
    compared = Comparisons(cost_table(able, goal), level)
    ids = tuple(able[i].trial_id for i in compared.leaders)
    worse = {able[i].trial_id: math.expm1(log) for i, log in compared.worse_by().items() if log < _FAR}
    best = ids[0] if len(ids) == 1 else None
    within = compared.equal_within()
    bound = within if within is not None and within <= _WIDEST_BOUND else None
    chosen = _recommended([(able[i], float(compared.effects[i])) for i in compared.leaders])
    why = "as the fastest" if chosen is by_figure(able, objective)[0] else "as the fastest, round by round"
    why = why if chosen.trial_id == ids[0] else "for its memory among those within 5 %"
    return Ranking(best, ids, chosen.trial_id, worse, bound, why)


def rank_run(directory: Path, summaries: Sequence[ConfigSummary], objective: ObjectiveSpec) -> Ranking:
    """Return the ranking of a run directory; nothing leads while some of its sweep's points have not run."""
    spec, pending = directory / SPEC, 0
    if spec.is_file() and not (directory / "search.json").exists():
        with suppress(UsageError):  # a file of another version of zbench
            ids = recorded_trials(spec)
            left = ids - {summary.trial_id for summary in summaries}
            pending = len(left) if left != ids else 0  # else identities are those of another version
    return Ranking(pending=pending) if pending else rank(summaries, objective)


def candidates(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the feasible and correct configurations that have a figure for the first goal."""
    summaries = list(summaries)
    goal = first_goal(summaries, objective)
    return [s for s in summaries if math.isfinite(cost(s, goal)) and not obstacles(s, objective)]


def by_figure(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the candidates, the best figure first, whatever its noise: who really leads is for `rank`."""
    able = candidates(summaries, objective)
    goal = first_goal(able, objective)
    return sorted(able, key=lambda s: cost(s, goal))


def level_of_looks(config: Mapping[str, Any], alpha: float) -> float:
    """Return the level of a configuration's last look: `alpha` itself where a sweep looks but once.

    A sweep with `run.separate` looks after every round up to `max_repeats`. All its looks have one level, so
    that a table printed later says what the sweep decided.
    """
    run = config.get("run") or {}
    if run.get("separate") is None:
        return alpha
    from zbench.analysis.group_sequential import constant_level

    return constant_level(FIRST_LOOK, max(int(run.get("max_repeats") or FIRST_LOOK), FIRST_LOOK), alpha)


def _recommended(leaders: Sequence[tuple[ConfigSummary, float]]) -> ConfigSummary:
    """Return the leader of least peak memory among those at most 5 % behind the foremost; ties by the goal.

    leaders: the foremost first, each with its estimate (a logarithm), as the ranking has it. Only those with
    as many repeats as any take part. Peaks that print alike are equal: no one would choose by their last
    bytes.
    """
    most = max(len(summary.ok) for summary, _ in leaders)
    able = [(summary, estimate) for summary, estimate in leaders if len(summary.ok) == most]
    near = [summary for summary, estimate in able if not estimate - able[0][1] > _NEAR]
    peaks = [next((p for name in _PEAKS if (p := s.number(name)) is not None), None) for s in near]
    least = min((peak for peak in peaks if peak is not None), default=None)
    shown = [None if peak is None else format_bytes(peak) for peak in peaks]
    return near[0 if least is None else shown.index(format_bytes(least))]


def cost_table(summaries: Sequence[ConfigSummary], goal: Goal) -> list[list[float]]:
    """Return log of the goal's metric, less is better: (configurations, rounds), NaN where it is missing.

    A time of a heat is the mean of its turns on a log scale, so that a difference of two configurations of
    the heat is the mean over its cycles. Where `alone` took turns with them it stands for what the machine
    did in that heat, and so links configurations that never met.
    """
    metric = metric_named(goal.metric)
    sign = -1 if goal.direction == "maximize" else 1
    rounds = sorted({record.repeat for summary in summaries for record in summary.ok})
    column = {number: i for i, number in enumerate(rounds)}
    table = [[math.nan] * len(rounds) for _ in summaries]
    is_time = metric.unit in TIMED and metric.compute is None
    pace = _pace_of_heats(summaries, goal.metric) if is_time else {}
    for row, summary in zip(table, summaries, strict=True):
        for record in summary.ok:
            value = metric.read(record)
            if isinstance(value, int | float) and value >= 0:
                row[column[record.repeat]] = sign * math.log(value or _NOTHING) + pace.get(id(record), 0.0)
    return table


def _pace_of_heats(summaries: Sequence[ConfigSummary], metric: str) -> dict[int, float]:
    """Return what to add to the log of a record's time, by its `id`: from the mean of its steps to its turns
    (where the metric rests on that mean), and from its heat to the typical one of its round, where the same
    `alone` was in all of these.
    """
    rounds: dict[tuple[str, int], list[tuple[Record, Heat]]] = {}
    for summary in summaries:
        for record in summary.ok:
            if record.heat is not None and record.heat.turn_seconds:
                rounds.setdefault((_workload_of(record), record.repeat), []).append((record, record.heat))
    pace: dict[int, float] = {}
    for members in rounds.values():
        alone = [mean_log(heat.alone) for _, heat in members]
        typical = fmean(alone)  # NaN where one has none
        for (record, heat), own in zip(members, alone, strict=True):
            if record.timing is not None:
                turns = mean_log(heat.turn_seconds) - math.log(record.timing.mean_step_s)
                moved = typical - own if math.isfinite(typical) else 0.0
                pace[id(record)] = turns * (metric not in STEP_TIMES[1:]) + moved
    return pace


def _workload_of(record: Record) -> str:
    """Return what configurations have in common that share an `alone`."""
    config = record.config
    run, engine = config.get("run", {}), config.get("engine", {})
    how = [run.get("world_size"), run.get("threads_per_rank"), *map(engine.get, ALONE_KEYS)]
    return json.dumps([config.get("workload"), *how], sort_keys=True)


Key = TypeVar("Key", bound=Hashable)


def dominates(left: Sequence[float], right: Sequence[float], directions: Sequence[Direction]) -> bool:
    """Whether `left` is at least as good as `right` in every objective and better in one."""
    ahead = [a - b if d == "maximize" else b - a for a, b, d in zip(left, right, directions, strict=True)]
    return all(by >= 0 for by in ahead) and any(by > 0 for by in ahead)


def pareto_front(values: Mapping[Key, Sequence[float]], directions: Sequence[Direction]) -> list[Key]:
    """Return the keys that no other key dominates, best of the first objective first; equal ones all stay."""
    front = [
        key
        for key, point in values.items()
        if not any(dominates(other, point, directions) for other in values.values())
    ]
    return sorted(front, key=lambda key: values[key][0], reverse=directions[0] == "maximize")
