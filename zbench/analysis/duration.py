"""How long a sweep will take, by how long its configurations took before."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from zbench.record.record import Record
from zbench.spec.trial import TrialSpec


@dataclass(frozen=True, slots=True)
class Prediction:
    """seconds: of all repeats, references left out. known: configurations that were measured before."""

    seconds: float
    known: int


def predict(trials: Iterable[TrialSpec], earlier: Iterable[Record]) -> Prediction | None:
    """Return how long the repeats of these trials will take one after another, None where nothing is known.

    A configuration takes the median of its own earlier repeats; one that was never measured takes the median
    of those that were. Repeats that `run.precision` or `run.separate` may add are not counted.
    """
    seconds: dict[str, list[float]] = {}
    for record in earlier:
        if record.elapsed_s is not None:
            seconds.setdefault(record.trial_id, []).append(record.elapsed_s)
    trials = list(trials)
    own = {t.trial_id: statistics.median(seconds[t.trial_id]) for t in trials if t.trial_id in seconds}
    if not own:
        return None
    usual = statistics.median(own.values())
    return Prediction(sum(own.get(t.trial_id, usual) * t.run.repeats for t in trials), len(own))
