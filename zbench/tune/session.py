"""A search from start to finish in one process: study, trials, collected records, the final round."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from optuna.storages import BaseStorage

from zbench.analysis.ranking import pareto_front
from zbench.errors import UsageError
from zbench.estimate.client import Simulator
from zbench.launch.events import (
    Notice,
    OnEvent,
    ReferenceStarted,
    StepDone,
    SweepStarted,
    TrialFinished,
    TrialStarted,
    Watch,
)
from zbench.launch.executor import REFERENCE_PATIENCE
from zbench.record.record import Failure, Record
from zbench.record.store import RunDirectory
from zbench.record.summary import summarize
from zbench.spec.run import RunSpec
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.claims import MemoryClaims, SqlClaims
from zbench.tune.collect import adopt, gather, gather_elsewhere, record_invalid
from zbench.tune.final import Final, settle
from zbench.tune.identity import StudyIdentity, Worker
from zbench.tune.importance import importance
from zbench.tune.ledger import Ledger, open_study
from zbench.tune.objective import Scorer
from zbench.tune.outage import Outages
from zbench.tune.prune import DEFAULT_FACTOR
from zbench.tune.roofline import fastest_first
from zbench.tune.samplers import make_proposer
from zbench.tune.space import Space
from zbench.tune.stop import stopper_of
from zbench.tune.storage import (
    DEFAULT_HEARTBEAT,
    JOURNAL,
    Heartbeat,
    journal_storage,
    reaching,
    relational_storage,
)
from zbench.tune.study import Search, StudySetup
from zbench.tune.warm_start import priors_from


class Runner(Protocol):
    """Runs one repeat of one trial; `zbench.launch.trial.TrialRunner` is one."""

    def has_reference(self, trial: TrialSpec) -> bool:
        """Whether `run` would start at once."""

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Return the trajectory that a trial is judged by, computed if missing, or why there is none."""

    def run(self, trial: TrialSpec, *, repeat: int, watch: Watch | None) -> Record:
        """Return the record, whatever became of the trial."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """What to search and where. storage: a database's URL, None for a journal in the run directory.

    environment: this host's, as `environment.json` holds it. is_worker: it pulls trials and decides nothing.
    """

    sweep: SweepSpec
    base_dir: Path
    environment: Mapping[str, Any]
    storage: str | None = None
    study: str | None = None
    is_worker: bool = False
    heartbeat: Heartbeat = DEFAULT_HEARTBEAT


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search found. `front`: trial ids that nothing beats in every objective, best first."""

    final: Final
    stopped: str
    study: str
    front: list[str] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)
    predicted_oom: dict[str, str] = field(default_factory=dict)
    elsewhere: list[Path] = field(default_factory=list)


def longest_trial(run: RunSpec) -> float:
    """Return how many seconds a trial can take at most: it, once again where it failed, and its reference."""
    return run.timeout * (2 + REFERENCE_PATIENCE * run.world_size)


class Session:
    """One process at work on one study. Every finished trial is in the run directory as soon as it ends."""

    def __init__(self, task: SearchTask, directory: RunDirectory, runner: Runner, on_event: OnEvent) -> None:
        self._task, self._directory = task, directory
        self._runner, self._tell = runner, on_event
        self._scorer = Scorer(task.sweep.objective)
        self._space = Space(task.sweep)
        with reaching(task.storage or ""):
            self._ledger = self._open()

    def run(self) -> SearchOutcome:
        """Search, collect, measure the leaders again, and say what was found."""
        sweep = self._task.sweep
        with reaching(self._task.storage or ""), Simulator(self._task.base_dir, jobs=1) as simulator:
            self._ledger.join(self._task.environment)
            if self._task.storage is None:
                adopt(self._ledger, self._directory, self._space)
            gather(self._ledger, self._directory)
            setup = self._setup(simulator)
            finished = [record for record in self._directory.records() if record.outcome != "invalid"]
            left = max(0, (setup.stopper.budget.trials or 0) - len(summarize(finished)))
            keys = tuple(axis.key for axis in self._space.axes)
            self._tell(SweepStarted(self._directory.path, sweep.search.trials, left, finished, keys))
            search = Search(setup, self._ledger, self._evaluate, self)
            reason = search.run()
            gather(self._ledger, self._directory)
            record_invalid(self._space, self._directory)
            if self._task.is_worker:
                return SearchOutcome(Final(None), reason, self._ledger.name)
            elsewhere = gather_elsewhere(self._ledger, self._directory, sweep)
            history = [entry.observation for entry in self._ledger.entries() if entry.host == self._kind]
        final = settle(
            self._directory.records,
            sweep.objective,
            self._measure,
            repeats=sweep.run.repeats,
            seed=sweep.search.seed,
        )
        shutil.rmtree(self._directory.path / "references", ignore_errors=True)
        shares = importance(history, self._space, self._scorer.directions[0])
        return SearchOutcome(
            final, reason, self._ledger.name, self._front(), shares, search.predicted_oom, elsewhere
        )

    def began(self, trial: TrialSpec) -> None:
        """A trial begins."""
        self._tell(TrialStarted(trial, 0))

    def ended(self, trial: TrialSpec, records: Sequence[Record], seconds: float, left: int) -> None:
        """A trial is in the ledger; it and what other workers finished meanwhile go to the run directory."""
        for record in gather(self._ledger, self._directory):
            mine = record.trial_id == trial.trial_id
            self._tell(TrialFinished(trial if mine else None, record, seconds if mine else 0.0, left))

    def _evaluate(self, trial: TrialSpec, repeat: int, watch: Watch | None) -> Record:
        self._prepare(trial)

        def seen(line: dict[str, Any]) -> str | None:
            self._tell(StepDone(trial, line))
            return watch(line) if watch is not None else None

        return self._runner.run(trial, repeat=repeat, watch=seen)

    def _prepare(self, trial: TrialSpec) -> None:
        """Compute a reference that is missing; UsageError for bad input, if nothing has run yet at all."""
        if self._runner.has_reference(trial):
            return
        self._tell(ReferenceStarted(trial))
        found = self._runner.reference(trial, lambda line: self._tell(StepDone(trial, line)))
        if isinstance(found, Failure) and found.kind == "usage" and not self._directory.has_run():
            raise UsageError(found.message)

    def _measure(self, trial: TrialSpec, repeat: int) -> Record:
        """Run a fresh repeat of a leader; the record is in the run directory before it counts."""
        began = time.monotonic()
        self._tell(TrialStarted(trial, repeat))
        record = replace(self._evaluate(trial, repeat, None), run_id=self._directory.run_id)
        self._directory.append(record)
        self._tell(TrialFinished(trial, record, time.monotonic() - began, 0))
        return record

    def _setup(self, simulator: Simulator) -> StudySetup:
        search = self._task.sweep.search
        stopper = stopper_of(search, self._scorer, len(self._space.axes))
        is_grid = search.method == "grid"
        priors, remarks = priors_from(
            [self._task.base_dir / path for path in search.warm_start], self._space, self._scorer, self._kind
        )
        for remark in remarks:
            self._tell(Notice(remark))
        return StudySetup(
            self._space,
            self._scorer,
            make_proposer(
                self._space,
                search.method,
                self._scorer.directions,
                seed=search.seed,
                trials=search.trials,
                order=lambda points: fastest_first(points, self._space, simulator.of),
            ),
            stopper,
            search.prune_slower_than or (None if is_grid else DEFAULT_FACTOR),
            search.imply_oom,
            is_grid,
            priors,
            simulator.of,
        )

    def _open(self) -> Ledger:
        storage = self._storage()
        name = self._task.study or (
            self._directory.run_id if self._task.storage is None else self._task.sweep.name
        )
        study = open_study(storage, name, StudyIdentity(self._task.sweep), self._scorer)
        engine = getattr(storage, "engine", None)
        claims = MemoryClaims() if engine is None else SqlClaims(engine, study._study_id)
        pace = self._task.heartbeat.pace if engine is not None else None
        worker = Worker.here(self._kind, heartbeat=pace, trial_seconds=longest_trial(self._task.sweep.run))
        outages = Outages(on_wait=lambda text: self._tell(Notice(text)))
        return Ledger(study, self._space, self._scorer, claims, worker, outages)

    def _storage(self) -> BaseStorage:
        if self._task.storage is not None:
            return relational_storage(self._task.storage, self._task.heartbeat)
        return journal_storage(self._directory.path / JOURNAL)

    @property
    def _kind(self) -> str:
        return str(self._task.environment.get("fingerprint", "unknown"))

    def _front(self) -> list[str]:
        objective, scorer = self._task.sweep.objective, self._scorer
        scores = {s.trial_id: scorer.score(s.records) for s in summarize(self._directory.records())}
        values = {
            k: score.values for k, score in scores.items() if score.feasible and score.values is not None
        }
        return pareto_front(values, scorer.directions) if len(objective.goals) > 1 else []
