"""When a search has done enough: its budget is spent, or more trials stopped paying."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from zbench.analysis.ranking import dominates
from zbench.errors import UsageError
from zbench.spec.metrics import Direction
from zbench.spec.sweep import SearchSpec
from zbench.tune.objective import History, is_feasible, relative
from zbench.units import format_seconds, parse_duration

_PATIENCE_PER_AXIS = 5
_LEAST_PATIENCE = 12
_EXAMPLE = "expected a budget such as 40trials, 20min or 40trials,20min"


def parse_budget(text: str) -> tuple[int | None, float | None]:
    """Return the trials and seconds of `40trials`, `20min` or both, a comma or `|` between.

    None for a limit that is not given; UsageError for zero or anything else.
    """
    trials: int | None = None
    seconds: float | None = None
    try:
        for part in filter(None, map(str.strip, re.split(r"[,|]", text))):
            count = re.fullmatch(r"([0-9][0-9_]*)\s*(?:trials?|t)", part)
            if count and trials is None:
                trials = int(count[1].replace("_", ""))
            elif seconds is None and part[-1].isalpha():
                seconds = parse_duration(part)
            else:
                raise ValueError(part)
    except ValueError:
        raise UsageError(f"{_EXAMPLE}, got {text!r}") from None
    if trials is None and seconds is None:
        raise UsageError(f"{_EXAMPLE}, got {text!r}")
    if (trials is not None and trials < 1) or (seconds is not None and seconds <= 0):
        raise UsageError(f"a budget of nothing finds nothing: {_EXAMPLE}, got {text!r}")
    return trials, seconds


@dataclass(slots=True)
class Stopper:
    """Says when to stop, and why. The clock begins when this is made. None: no limit of that kind."""

    trials: int | None
    seconds: float | None
    directions: tuple[Direction, ...]
    patience: int | None
    min_gain: float
    began: float = field(default_factory=time.monotonic)

    def spent(self, begun: int) -> str | None:
        """Return why nothing more may be begun, or None. begun: trials of all workers, running ones too."""
        if self.trials is not None and begun >= self.trials:
            return f"the budget of {self.trials} trials is spent"
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            return f"the budget of {format_seconds(self.seconds)} is spent"
        return None

    def flattened(self, history: History) -> str | None:
        """Return why more trials would not pay, or None: the last `patience` ones brought no gain."""
        ended = [trial for trial in history if trial.state.is_finished()]
        front: list[FrozenTrial] = []
        last_gain = None
        for index, trial in enumerate(ended):
            if is_feasible(trial):
                if self._improves(trial.values, front):
                    last_gain = index
                front.append(trial)
        if self.patience is None or last_gain is None or len(ended) - 1 - last_gain < self.patience:
            return None
        return f"the last {len(ended) - 1 - last_gain} trials brought no gain of {self.min_gain:.1%}"

    def _improves(self, values: Sequence[float], earlier: Sequence[FrozenTrial]) -> bool:
        """Whether these values beat every earlier one by `min_gain`, or widen the front of several."""
        if len(self.directions) > 1:
            return not any(
                list(values) == other.values or dominates(other.values, values, self.directions)
                for other in earlier
            )
        sign = 1 if self.directions[0] == "maximize" else -1
        return all(
            sign * relative(values[0] - other.values[0], other.values[0]) > self.min_gain for other in earlier
        )


def stopper_of(search: SearchSpec, directions: tuple[Direction, ...], axes: int) -> Stopper:
    """Return the stopper of a sweep file's search; a grid without a budget runs all of its points."""
    trials: int | None = search.trials
    patience = search.patience
    if search.method == "grid":
        trials = trials if "trials" in search.model_fields_set else None
    else:
        patience = patience or max(_LEAST_PATIENCE, _PATIENCE_PER_AXIS * axes)
    return Stopper(trials, search.budget, directions, patience, search.min_gain)
