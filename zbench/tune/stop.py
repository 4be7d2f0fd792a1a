"""When a search has done enough: its budget is spent, or more trials stopped paying."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from zbench.analysis.ranking import dominates
from zbench.errors import UsageError
from zbench.spec.sweep import SearchSpec
from zbench.tune.history import Observation, Score
from zbench.tune.objective import Scorer
from zbench.units import format_seconds, parse_duration

_PATIENCE_PER_AXIS = 5
_LEAST_PATIENCE = 12
_EXAMPLE = "expected a budget such as 40trials, 20min or 40trials,20min"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a search may spend. None: no limit of that kind."""

    trials: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read `40trials`, `20min` or both, a comma or `|` between; UsageError for zero or anything else."""
        trials: int | None = None
        seconds: float | None = None
        for part in filter(None, map(str.strip, re.split(r"[,|]", text))):
            count = re.fullmatch(r"([0-9][0-9_]*)\s*(?:trials?|t)", part)
            if count and trials is None:
                trials = int(count[1].replace("_", ""))
                continue
            try:
                duration = parse_duration(part)
            except ValueError:
                raise UsageError(f"{_EXAMPLE}, got {text!r}") from None
            if seconds is not None or not part[-1:].isalpha():
                raise UsageError(f"{_EXAMPLE}, got {text!r}; a number needs its unit")
            seconds = duration
        if trials is None and seconds is None:
            raise UsageError(f"{_EXAMPLE}, got {text!r}")
        if (trials is not None and trials < 1) or (seconds is not None and seconds <= 0):
            raise UsageError(f"a budget of nothing finds nothing: {_EXAMPLE}, got {text!r}")
        return cls(trials, seconds)

    def __str__(self) -> str:
        spent = [f"{self.trials} trials"] if self.trials is not None else []
        spent += [format_seconds(self.seconds)] if self.seconds is not None else []
        return " or ".join(spent) or "no limit"


@dataclass(slots=True)
class Stopper:
    """Says when to stop, and why. The clock begins when this is made."""

    budget: Budget
    scorer: Scorer
    patience: int | None
    min_gain: float
    began: float = field(default_factory=time.monotonic)

    def spent(self, begun: int) -> str | None:
        """Return why nothing more may be begun, or None. begun: trials of all workers, running ones too."""
        if self.budget.trials is not None and begun >= self.budget.trials:
            return f"the budget of {self.budget.trials} trials is spent"
        if self.budget.seconds is not None and time.monotonic() - self.began >= self.budget.seconds:
            return f"the budget of {format_seconds(self.budget.seconds)} is spent"
        return None

    def flattened(self, history: Sequence[Observation]) -> str | None:
        """Return why more trials would not pay, or None: the last `patience` ones brought no gain."""
        scores = [observation.score for observation in history if observation.score is not None]
        if self.patience is None or not any(score.feasible for score in scores):
            return None
        since = len(scores) - 1 - self._last_gain(scores)
        if since < self.patience:
            return None
        return f"the last {since} trials brought no gain of {self.min_gain:.1%}"

    def _last_gain(self, scores: Sequence[Score]) -> int:
        """Return the index of the last score that improved the best by `min_gain`, or widened the front."""
        gains, front = list[int](), list[Score]()
        for index, score in enumerate(scores):
            if score.feasible:
                if self._improves(score, front):
                    gains.append(index)
                front.append(score)
        return gains[-1]

    def _improves(self, score: Score, earlier: Sequence[Score]) -> bool:
        if len(self.scorer.goals) == 1:
            return all(self.scorer.gain(score, other) > self.min_gain for other in earlier)
        assert score.values is not None
        directions = self.scorer.directions
        return not any(
            o.values == score.values or dominates(o.values or (), score.values, directions) for o in earlier
        )


def stopper_of(search: SearchSpec, scorer: Scorer, axes: int) -> Stopper:
    """Return the stopper of a sweep file's search; a grid without a budget runs all of its points."""
    if search.method == "grid":
        trials = search.trials if "trials" in search.model_fields_set else None
        return Stopper(Budget(trials, search.budget), scorer, search.patience, search.min_gain)
    patience = search.patience or max(_LEAST_PATIENCE, _PATIENCE_PER_AXIS * axes)
    return Stopper(Budget(search.trials, search.budget), scorer, patience, search.min_gain)
