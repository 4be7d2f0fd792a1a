"""Play the real search against a grid that is known already, and count what it needed."""

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from optuna.storages import InMemoryStorage

from zbench.launch.events import Watch
from zbench.record.record import Record
from zbench.spec.sweep import SearchSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.claims import MemoryClaims
from zbench.tune.identity import StudyIdentity, Worker
from zbench.tune.ledger import Ledger, open_study
from zbench.tune.samplers import make_proposer
from zbench.tune.stop import Stopper, stopper_of
from zbench.tune.study import Search, StudySetup

from .grid import Grid, slowed


class FoundError(Exception):
    """The search ran a trial that is good enough."""


@dataclass(frozen=True)
class Played:
    """Trial ids in the order in which they ran, and why the search ended."""

    trial_ids: list[str]
    reason: str


def play(grid: Grid, spec: SearchSpec, *, noise: float = 0.0, within: float | None = None) -> Played:
    """Play a search; `within` ends it at the first trial whose true value is so near to the best (a share).

    noise: standard deviation, as a share, of every step time that the search sees.
    """
    scorer, ran = grid.scorer, list[str]()
    generator = random.Random(f"noise/{spec.seed}")

    def evaluate(trial: TrialSpec, repeat: int, watch: Watch | None) -> Record:
        assert trial.trial_id not in ran, "a point ran twice"
        ran.append(trial.trial_id)
        if within is not None and grid.shortfall(trial.trial_id) <= within:
            raise FoundError
        record = slowed(grid.records[trial.trial_id], 1 / (1 + generator.gauss(0, noise)))
        return replace(record, trial_id=trial.trial_id, axes=trial.axes, config=trial.config())

    study = open_study(InMemoryStorage(), "replay", StudyIdentity(grid.space.sweep), scorer)
    ledger = Ledger(study, grid.space, scorer, MemoryClaims(), Worker.here("replay"))
    proposer = make_proposer(grid.space, spec.method, scorer.directions, seed=spec.seed, trials=spec.trials)
    setup = StudySetup(grid.space, scorer, proposer, _stopper(grid, spec, within))
    try:
        return Played(ran, Search(setup, ledger, evaluate, _Deaf()).run())
    except FoundError:
        return Played(ran, "found")


def trials_needed(grid: Grid, method: str, seed: int, *, within: float = 0.02, noise: float = 0.0) -> int:
    """Return how many trials a search runs until one is within a share of the best."""
    spec = SearchSpec(method=method, seed=seed, trials=len(grid.records))  # type: ignore[arg-type]
    played = play(grid, spec, noise=noise, within=within)
    assert played.reason == "found", f"{method} with seed {seed} ended without: {played.reason}"
    return len(played.trial_ids)


def median_trials(grid: Grid, method: str, seeds: Iterable[int], *, noise: float = 0.0) -> float:
    """Return the median of `trials_needed` over seeds."""
    return statistics.median(trials_needed(grid, method, seed, noise=noise) for seed in seeds)


def random_median(grid: Grid, within: float = 0.02) -> float:
    """Return the exact median of random search: draws without replacement until a good point is drawn."""
    count = len(grid.records)
    good = sum(grid.shortfall(trial_id) <= within for trial_id in grid.records)
    missed = 1.0
    for drawn in range(1, count + 1):
        missed *= max(0, count - good - drawn + 1) / (count - drawn + 1)
        if missed <= 0.5:
            return drawn
    raise AssertionError("no point is good")


def _stopper(grid: Grid, spec: SearchSpec, within: float | None) -> Stopper:
    stopper = stopper_of(spec, grid.scorer, len(grid.space.axes))
    return stopper if within is None else replace(stopper, patience=None)


class _Deaf:
    def began(self, trial: TrialSpec) -> None:
        """Nobody listens."""

    def ended(self, trial: TrialSpec, records: Sequence[Record], seconds: float, left: int) -> None:
        """Nobody listens."""
