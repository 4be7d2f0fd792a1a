"""Which configurations lead, as a statement: the best, those that cannot be told from it, and the rest.

Multiple comparisons with the best (Hsu, "Constrained simultaneous confidence intervals for multiple
comparisons with the best", Annals of Statistics 12, 1984) on the logarithm of the objective, paired by
round: each round measures every configuration once, so what the machine did meanwhile strikes all alike
and cancels in differences. A configuration leads unless another is better by more than Dunnett's one-sided
critical difference; one that leads alone is the best. Among equals one is named with probability `alpha`
at most: Hsu's "best" allows a tie, so each side has half of `alpha` here.
scipy's `dunnett` and `tukey_hsd` are for unpaired samples, and give p-values and not the difference.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from zbench.analysis.critical import one_sided_dunnett
from zbench.analysis.defaults import changed_keys
from zbench.analysis.looks import level_of_looks
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, obstacles
from zbench.spec.metrics import Goal, metric_named
from zbench.spec.sweep import ObjectiveSpec

Floats = NDArray[np.float64]
ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a sweep's records say of its feasible and correct configurations, by trial id.

    best: the one that is separated from all others, if there is one. indistinguishable: the leaders that
    cannot be told apart (the best alone, where there is one). recommended: one of the leaders all the same,
    by exact figures. worse_by: of each other feasible configuration, by which fraction at least it is worse
    than the best (0 where that is not known). equal_within: the leaders are this close, as a fraction.
    """

    best: str | None = None
    indistinguishable: tuple[str, ...] = ()
    recommended: str | None = None
    worse_by: Mapping[str, float] = field(default_factory=dict)
    equal_within: float | None = None

    def document(self) -> dict[str, Any]:
        """Return the keys of a `--json` document that say who leads."""
        return {
            "best": self.best,
            "indistinguishable": list(self.indistinguishable),
            "recommended": self.recommended,
            "worse_by": dict(self.worse_by),
        }

    def mark(self, trial_id: str) -> str:
        """Return `*` for the best, `≈` for each of several leaders, and nothing for the rest."""
        if trial_id == self.best:
            return "*"
        return "≈" if trial_id in self.indistinguishable else ""


def rank(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec, alpha: float | None = None) -> Ranking:
    """Return the ranking by the objective's first goal; configurations with obstacles take no part.

    alpha: one-sided error of naming a best where equals lead; by default 1 %, shared out over the looks of
    a sweep that repeats until its leaders are apart (`run.separate`).
    """
    goal = objective.goals[0]
    able = [s for s in summaries if math.isfinite(cost(s, goal)) and not obstacles(s, objective)]
    if not able:
        return Ranking()
    level = alpha if alpha is not None else level_of_looks(able[0].config, ALPHA)
    field_ = _Field(cost_table(able, goal), level)
    leaders = [able[i] for i in field_.leaders()]
    ids = tuple(summary.trial_id for summary in leaders)
    worse = {able[i].trial_id: math.expm1(log) for i, log in field_.worse_by().items()}
    best = ids[0] if len(ids) == 1 else None
    return Ranking(best, ids, recommended(leaders).trial_id, worse, field_.equal_within())


def recommended(leaders: Sequence[ConfigSummary]) -> ConfigSummary:
    """Return the leader of least peak memory, then of fewest changed keys: exact figures, so no lottery."""

    def order(summary: ConfigSummary) -> tuple[float, float, int]:
        device, host = (summary.number(name) for name in ("peak_device_bytes", "peak_host_bytes"))
        unknown = math.inf
        return (
            device if device is not None else unknown,
            host if host is not None else unknown,
            changed_keys(summary.config),
        )

    return min(leaders, key=order)


def cost_table(summaries: Sequence[ConfigSummary], goal: Goal) -> Floats:
    """Return log of the goal's metric, less is better: (configurations, rounds), NaN where it is missing."""
    metric = metric_named(goal.metric)
    sign = -1 if goal.direction == "maximize" else 1
    rounds = sorted({record.repeat for summary in summaries for record in summary.ok})
    column = {number: i for i, number in enumerate(rounds)}
    table = np.full((len(summaries), len(rounds)), np.nan)

    def read(record: Record) -> float | None:
        value: object = record
        for name in metric.path:
            value = getattr(value, name, None)
        return value if isinstance(value, int | float) and value > 0 else None

    for row, summary in enumerate(summaries):
        for record in summary.ok:
            value = read(record)
            if value is not None:
                table[row, column[record.repeat]] = sign * math.log(value)
    return table


class _Field:
    """All pairs of configurations: mean difference over the rounds both have, and its critical difference."""

    def __init__(self, table: Floats, alpha: float) -> None:
        count = len(table)
        there = ~np.isnan(table)
        rounds = there.astype(float) @ there.T.astype(float)
        differences = table[:, None, :] - table[None, :, :]  # NaN where either is missing
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(rounds > 0, np.nansum(differences, axis=2) / rounds, np.nan)
            squares = np.nansum((differences - mean[:, :, None]) ** 2, axis=2)
            own = np.sqrt(squares / (rounds - 1) / rounds)
            critical = _pooled_critical(table, alpha) * np.sqrt(2 / rounds)
            guard = -stdtrit(np.maximum(rounds - 1, 1), alpha) * own
        self.mean = np.where(rounds > 0, mean, 0.0)
        guard = np.where(rounds > 1, guard, 0.0)  # one round has no spread of its own: the pooled one decides
        self.critical = np.where(rounds > 0, np.maximum(critical, guard), np.inf)
        np.fill_diagonal(self.critical, np.inf if count > 1 else 0.0)

    def leaders(self) -> list[int]:
        """Return the rows that no other beats for sure, the apparently best first."""
        leading = ~(self.mean > self.critical).any(axis=1)
        found = [int(i) for i in np.flatnonzero(leading)]
        return sorted(found, key=lambda i: float(self.mean[i].mean()))

    def worse_by(self) -> dict[int, float]:
        """Return for each row that does not lead by how much (a logarithm) it is worse than any leader."""
        leaders = self.leaders()
        gaps = self.mean - np.where(np.isfinite(self.critical), self.critical, 0.0)
        rest = sorted(set(range(len(self.mean))) - set(leaders))
        return {i: max(0.0, float(gaps[i, leaders].min())) for i in rest}

    def equal_within(self) -> float | None:
        """Return the fraction within which all leaders are equal for sure; None for one, or if unknown."""
        leaders = self.leaders()
        among = np.ix_(leaders, leaders)
        others = ~np.eye(len(leaders), dtype=bool)
        bounds = (self.mean[among] + self.critical[among])[others]
        widest = float(bounds.max()) if bounds.size else math.nan
        return math.expm1(widest) if math.isfinite(widest) else None


def _pooled_critical(table: Floats, alpha: float) -> float:
    """Return Dunnett's critical value times the standard deviation of one cell of the table.

    The deviation is what rounds and configurations leave of the logarithms (a two-way layout without
    interaction). Each pair is held against its own spread, too, so that no quiet field lends its precision
    to two noisy configurations.
    """
    rows, columns = np.nonzero(~np.isnan(table))
    count, rounds = table.shape
    used = np.unique(columns)
    degrees = len(rows) - count - len(used) + 1
    if degrees < 1 or count < 2:
        return math.inf if count > 1 else 0.0
    effects = np.zeros((len(rows), count + rounds))
    effects[np.arange(len(rows)), rows] = 1
    effects[np.arange(len(rows)), count + columns] = 1
    values = table[rows, columns]
    fitted = effects @ np.linalg.lstsq(effects, values, rcond=None)[0]
    deviation = math.sqrt(float(((values - fitted) ** 2).sum()) / degrees)
    if deviation < 1e-9:  # exact figures, such as bytes: rounding of logarithms is no noise
        return 1e-9
    return one_sided_dunnett(count - 1, degrees, alpha / 2) * deviation
