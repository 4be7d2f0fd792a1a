"""Which configurations lead: the best, those that may be it, the recommended one, and how far each may be
from it.

The one place that decides this; whatever prints, exports or searches asks `rank`. Bounds, effects of axes and
`of_compute` are contrasts of one table of log ratios (`zbench.analysis.ratios`).
"""

import bisect
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zbench.errors import UsageError
from zbench.record.store import SEARCH, SPEC
from zbench.record.summary import ConfigSummary, cost, first_goal, obstacles
from zbench.spec.load import recorded_trials
from zbench.spec.metrics import Direction, Goal
from zbench.spec.sweep import ObjectiveSpec
from zbench.units import format_bytes

if TYPE_CHECKING:  # imports numpy, which a plan does not need
    from zbench.analysis.cells import Cell
    from zbench.analysis.effects import Effect
    from zbench.analysis.ratios import Fit

ALPHA = 0.05
"""The chance that any bound of a sweep does not hold."""

FIRST_LOOK = 2
"""Repeats before the first look of a sweep with `run.separate`: one shows no spread between processes."""

_FAR = 100.0  # a gap that only a figure of 0 makes
_WIDEST_BOUND = 1.0
_NEAR = math.log(1.05)
_MEAN_STEP = Goal("mean_step_s", "minimize")
_PEAKS = ("peak_device_bytes", "peak_host_bytes", "peak_rss_bytes")


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a sweep's records say of its feasible and correct configurations, by trial id.

    best: the one that is separated from all others, if there is one. indistinguishable: the leaders, any of
    which may be the best (the best alone, where there is one). recommended: one of the leaders all the same,
    and why, in words that follow its name. worse_by: by which fraction each other feasible configuration is
    at least worse than the best. at_most: by which fraction every one is at most worse. All these bounds hold
    together with a probability of 95 %. What is not known is missing. effects: of the axes. of_compute: its
    95 % interval. pending: configurations of the sweep that have not run; while there are any, nothing leads.
    load: what took CPU time from the repeats, in words; step times alone then decide nothing.
    """

    best: str | None = None
    indistinguishable: tuple[str, ...] = ()
    recommended: str | None = None
    worse_by: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    effects: "tuple[Effect, ...]" = ()
    of_compute: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    pending: int = 0
    load: str = ""

    @property
    def equal_within(self) -> float | None:
        """Return how close all leaders are, as a fraction; None where nothing below 100 % is known."""
        bounds = [self.at_most.get(name, math.inf) for name in self.indistinguishable]
        widest = max(bounds, default=math.inf)
        return widest if len(bounds) > 1 and widest <= _WIDEST_BOUND else None

    @property
    def tied(self) -> str:
        """Return with how many others the recommended one is tied, in words; empty where it is the best."""
        others = len(self.indistinguishable) - 1
        return f"tied with {others} other{'s' * (others > 1)}" if others > 0 else ""

    def document(self) -> dict[str, Any]:
        """Return the keys of a `--json` document that say who leads, and what each choice costs."""
        return {
            "best": self.best,
            "indistinguishable": list(self.indistinguishable),
            "recommended": self.recommended,
            "worse_by": dict(self.worse_by),
            "at_most": dict(self.at_most),
            "effects": [effect.document() for effect in self.effects],
            "load": self.load,
        }

    def mark(self, trial_id: str) -> str:
        """Return `*` for the best, `≈` for each of several leaders (`≈*` the recommended), else nothing."""
        if trial_id == self.best:
            return "*"
        tied = "≈" if trial_id in self.indistinguishable else ""
        return f"{tied}*" if trial_id == self.recommended else tied


def rank(
    summaries: Iterable[ConfigSummary],
    objective: ObjectiveSpec,
    alpha: float = ALPHA,
    *,
    explains: bool = True,
) -> Ranking:
    """Return the ranking by the objective's first goal; configurations with obstacles take no part.

    alpha: the chance that any bound does not hold, shared out over the looks of a sweep with `run.separate`.
    explains: also what each choice costs (`effects`), and `of_compute`.
    """
    summaries = list(summaries)
    goal = first_goal(summaries, objective)
    able = sorted(candidates(summaries, objective), key=lambda s: s.number("mean_step_s") or math.inf)
    if not able:
        return Ranking()
    first = able[0]
    if len(able) == 1:
        return Ranking(first.trial_id, (first.trial_id,), first.trial_id)
    from zbench.analysis.bounds import bounds_of, under_load  # imports scipy, which one row does not need
    from zbench.analysis.cells import cells_of, cpu_cells_of, is_time
    from zbench.analysis.effects import effects_of
    from zbench.analysis.ratios import fitted

    cells = cells_of(summaries, goal)
    fit = fitted(cells)
    names = {summary.trial_id: summary for summary in able}
    bounds = bounds_of(fit, list(names), _level(able, alpha))
    load = load_on(able) if is_time(goal) else ""
    if load:
        cpu = cpu_cells_of(able)
        by_cpu = None if cpu is None else bounds_of(fitted(cpu), list(names), _level(able, alpha))
        bounds = under_load(bounds, by_cpu)
    ids = bounds.leaders
    estimates = dict(zip(fit.rows, fit.estimates.tolist(), strict=True))
    chosen = _recommended([names[name] for name in ids], estimates, goal)
    fastest = "the fastest repeat by repeat"
    why = fastest if chosen == ids[0] else f"the least memory within 5 % of {fastest}"
    return Ranking(
        best=ids[0] if len(ids) == 1 else None,
        indistinguishable=ids,
        recommended=chosen,
        worse_by={
            name: math.expm1(log) for name, log in bounds.at_least.items() if name not in ids and log < _FAR
        },
        at_most={name: math.expm1(log) for name, log in bounds.at_most.items() if log < _FAR},
        why=why,
        effects=effects_of(fit, able, names[chosen]) if explains and not load else (),
        of_compute=_of_compute(summaries, goal, cells, fit) if explains and not load else {},
        load=load,
    )


def load_on(summaries: Sequence[ConfigSummary]) -> str:
    """Return what took CPU time from the repeats, the most of any repeat, in words; empty if nothing did."""
    disturbances = [r.disturbance for s in summaries for r in s.ok if r.disturbance is not None]
    worst = max(disturbances, key=lambda disturbance: disturbance.severity, default=None)
    return "" if worst is None or worst.severity <= 1 else str(worst)


def _level(summaries: Sequence[ConfigSummary], alpha: float) -> float:
    """Return the level of this look: `alpha` itself where a sweep looks but once.

    With `run.separate` a sweep looks after every round up to `max_repeats`.
    """
    run = summaries[0].config.get("run") or {}
    if run.get("separate") is None:
        return alpha
    from zbench.analysis.group_sequential import nominal_levels

    most = max(int(run.get("max_repeats") or FIRST_LOOK), FIRST_LOOK)
    looks = tuple(range(FIRST_LOOK, most + 1))
    look = min(max(len(summary.ok) for summary in summaries), most) - FIRST_LOOK
    return 2 * nominal_levels(looks, alpha / 2)[max(look, 0)]


def _recommended(leaders: Sequence[ConfigSummary], estimates: Mapping[str, float], goal: Goal) -> str:
    """Return the leader of least peak memory among those at most 5 % behind the foremost; ties by the goal.

    leaders: the foremost first. Only those with as many repeats as any take part, and none that another
    leader beats in the figure of the goal as it is shown and in memory. Peaks that print alike are equal:
    no one would choose by their last bytes.
    """
    most = max(len(summary.ok) for summary in leaders)
    able = [summary for summary in leaders if len(summary.ok) == most]
    peaks = {
        s.trial_id: next((p for name in _PEAKS if (p := s.number(name)) is not None), None) for s in able
    }

    costs = {summary.trial_id: cost(summary, goal) for summary in able}
    peak_costs = sorted((peak, costs[name]) for name, peak in peaks.items() if peak is not None)
    least_costs = list(itertools.accumulate((figure for _, figure in peak_costs), min))

    def is_beaten(name: str) -> bool:
        smaller = 0 if (peak := peaks[name]) is None else bisect.bisect_left(peak_costs, (peak, -math.inf))
        return smaller > 0 and least_costs[smaller - 1] < costs[name]

    contenders = [summary for summary in able if not is_beaten(summary.trial_id)]
    first = estimates[contenders[0].trial_id]
    near = [summary.trial_id for summary in contenders if not estimates[summary.trial_id] - first > _NEAR]
    least = min((peak for name in near if (peak := peaks[name]) is not None), default=None)
    if least is None:
        return near[0]
    shown = format_bytes(least)
    return next(name for name in near if (peak := peaks[name]) is not None and format_bytes(peak) == shown)


def _of_compute(
    summaries: Sequence[ConfigSummary], goal: Goal, cells: "Sequence[Cell]", fit: "Fit"
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of the time of `alone` over each configuration's, as far as it bounds
    anything. cells, fit: of the goal.
    """
    from zbench.analysis.cells import alone_row, cells_of
    from zbench.analysis.ratios import fitted

    beside = {
        summary.trial_id: alone_row(summary.ok[0])
        for summary in summaries
        if any(record.heat is not None and record.heat.alone for record in summary.ok)
    }
    if not beside:
        return {}
    if goal != _MEAN_STEP:
        cells = cells_of(summaries, _MEAN_STEP)
    if goal != _MEAN_STEP or fit.summary != "mean":
        fit = fitted(cells, "mean")
    intervals = {}
    for row in dict.fromkeys(beside[name] for name in fit.rows if name in beside):
        names = [name for name in fit.rows if beside.get(name) == row]
        for name, contrast in zip(names, fit.against(row, names), strict=True):
            low, high = map(math.exp, contrast.interval())
            if high - low < 1:
                intervals[name] = (low, high)
    return intervals


def rank_run(
    directory: Path, summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, *, explains: bool = True
) -> Ranking:
    """Return the ranking of a run directory; nothing leads while some of its sweep's points have not run."""
    spec = directory / SPEC
    pending = 0
    if spec.is_file() and not (directory / SEARCH).exists():
        with suppress(UsageError):  # a file of another version of zbench
            ids = recorded_trials(spec)
            missing = ids - {summary.trial_id for summary in summaries}
            pending = len(missing) if missing != ids else 0  # else identities are those of another version
    return Ranking(pending=pending) if pending else rank(summaries, objective, explains=explains)


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
