"""A search from start to finish in one process. It asks for a point, takes it, runs it and tells what became
of it, until there is reason to stop; then comes the final round.
"""

import math
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from zbench.errors import UsageError
from zbench.estimate.client import Simulator
from zbench.launch.events import Notice, OnEvent, SweepStarted, TrialFinished
from zbench.launch.executor import REFERENCE_PATIENCE, Executor
from zbench.launch.scheduler import Proposal, Proposer, Scheduler
from zbench.record.record import Failure, Record
from zbench.record.store import RunDirectory
from zbench.record.summary import summarize
from zbench.spec.run import RunSpec
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.finalists import Finalists
from zbench.tune.findings import Final, SearchOutcome, front, importance, settle
from zbench.tune.forecast import (
    PRUNE_FACTOR,
    Ask,
    MemoryLimits,
    pruner,
    too_large,
    work_per_step,
)
from zbench.tune.ledger import Ledger, adopt, earlier_trials, gather, open_study, record_of
from zbench.tune.objective import directions_of, is_feasible
from zbench.tune.samplers import make_proposer
from zbench.tune.space import Point, Space, point_key
from zbench.tune.stop import stopper_of
from zbench.tune.storage import (
    DEFAULT_HEARTBEAT,
    JOURNAL,
    Heartbeat,
    Outages,
    journal_storage,
    reaching,
    relational_storage,
)

_LEARNING = ("tpe", "nsga2")  # methods that look where earlier trials were good
_PREDICTED_OOM_IN_A_ROW = 200
_SLACK_SECONDS = 60.0
_UNLIKE = "of the study's trials ran on other kinds of machines: their workers' run directories hold them"


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


def longest_trial(run: RunSpec) -> float:
    """Return how many seconds a trial can take at most: it, once again where it failed, and its reference."""
    return run.timeout * (2 + REFERENCE_PATIENCE * run.world_size)


@dataclass(frozen=True, slots=True)
class _Lease:
    """A point that this process has taken. hold: its signs of life; closing it gives the point back."""

    trial: TrialSpec
    lease: Trial
    hold: ExitStack


class Session(Proposer):
    """One process at work on one study: it proposes points, and then the final round.

    Every finished trial is in the run directory as soon as it ends.
    """

    def __init__(
        self, task: SearchTask, directory: RunDirectory, executor: Executor, on_event: OnEvent
    ) -> None:
        self._task, self._sweep, self._spec = task, task.sweep, task.sweep.search
        self._directory, self._tell = directory, on_event
        self._scheduler = Scheduler(executor, directory.path, on_event)
        self._goals = task.sweep.objective.goals
        self._directions = directions_of(task.sweep.objective)
        self._space = Space(task.sweep)
        self._stopper = stopper_of(self._spec, self._directions, len(self._space.axes))
        self._limits = _memory_limits(task.sweep)
        self._best_rate, self.nodes = 0.0, task.sweep.run.nodes
        self._learnt, self._refused = set[int](), set[str]()
        self._predicted_oom: dict[str, str] = {}
        self._earlier: list[FrozenTrial] = []
        self._listed = self._space.included
        self._held = ExitStack()
        self._under_way = dict[str, _Lease]()
        self._stopped = ""
        with reaching(task.storage or ""):
            self._ledger = self._open()

    def run(self) -> SearchOutcome:
        """Search, collect, measure the leaders again, and say what was found."""
        sweep, directory, ledger, task = self._sweep, self._directory, self._ledger, self._task
        with reaching(task.storage or ""), Simulator(task.base_dir, jobs=1) as simulator, self._held:
            if self._task.storage is None:
                adopt(ledger, directory, self._space)
            gather(ledger.of_this_kind(ledger.trials()), directory)
            self._plan(simulator.of)
            self._scheduler.run(self)
            everywhere = ledger.trials()
            trials = ledger.of_this_kind(everywhere)
            gather(trials, directory)
            if self._task.is_worker:
                return SearchOutcome(Final(None), self._stopped, ledger.name)
        if unlike := len(everywhere) - len(trials):
            self._tell(Notice(f"{unlike} {_UNLIKE}"))
        final = settle(directory.records, sweep.objective, self._measure_again, repeats=sweep.run.repeats)
        shutil.rmtree(directory.path / "references", ignore_errors=True)
        best = front(directory.records(), sweep.objective)
        shares = importance(trials, self._directions[0])
        return SearchOutcome(final, self._stopped, ledger.name, best, shares, self._predicted_oom)

    def _open(self) -> Ledger:
        """Open the study; UsageError where it is another sweep's."""
        task = self._task
        if task.storage is None:
            storage: BaseStorage = journal_storage(self._directory.path / JOURNAL)
            name, pace = self._directory.run_id, None
        else:
            storage = relational_storage(task.storage, task.heartbeat)
            name, pace = self._sweep.name, task.heartbeat.pace
        kind = str(task.environment.get("fingerprint", "unknown"))
        outages = Outages(lambda text: self._tell(Notice(text)))
        longest = 2 * longest_trial(self._sweep.run) + _SLACK_SECONDS
        study = open_study(storage, task.study or name, self._sweep)
        return Ledger(study, self._space, kind, outages, pace=pace, longest=longest)

    def _plan(self, ask: Ask) -> None:
        """Make what proposes the points, and tell that the search begins."""
        self._ask = ask
        self._next_point = make_proposer(self._space, self._spec, self._directions)
        if self._task.storage is None and self._spec.method in _LEARNING:
            self._earlier = earlier_trials(self._directory.path, self._space, self._ledger.kind)
        finished = self._directory.records()
        remaining = max(0, (self._stopper.trials or 0) - len(summarize(finished)))
        keys = tuple(axis.key for axis in self._space.axes)
        place = self._directory.path
        self._tell(SweepStarted(place, self._spec.trials, remaining, finished, keys, is_search=True))
        if self._earlier:
            self._listed = [*self._best_earlier(), *self._space.included]
            self._tell(Notice(f"{len(self._earlier)} trials of earlier runs of this sweep teach the search"))
        if self._limits is not None:
            self._tell(Notice("points are simulated first; one that cannot fit the memory does not run"))

    def propose(self, scheduler: Scheduler) -> Proposal | None:
        """Take the next point; None where there is reason to stop, or no point is left.

        Where nobody knows how many trials run at once, one runs after another: each teaches the search.
        """
        if scheduler.vacancy().batches == math.inf and not scheduler.is_idle:
            return None
        while True:
            if self._ledger.reap():
                self._refused.clear()
            trials = self._ledger.trials()
            history = self._ledger.of_this_kind(trials)
            self._learn(history)
            self._stopped = self._stopper.spent(len(trials)) or self._stopper.flattened(history) or ""
            point = None if self._stopped else self._next(trials, history)
            self.waits = any(trial.state == TrialState.RUNNING for trial in trials)  # it may yet be lost
            if point is None:
                self._stopped = self._stopped or self._exhausted()
                return None
            if (proposal := self._begin(point)) is not None:
                return proposal

    def keep(self, trial: TrialSpec, record: Record) -> None:
        """Save a record in the study and in the run directory, with those of other workers, and tell it."""
        taken = self._under_way.pop(trial.trial_id)
        with taken.hold:
            if not self._ledger.finish(taken.lease, record):
                return
        trials = self._ledger.trials()
        budget = self._stopper.trials
        remaining = max(0, budget - len(trials)) if budget is not None else 0
        for new in gather(self._ledger.of_this_kind(trials), self._directory):
            own_trial = trial if new.trial_id == trial.trial_id else None
            self._tell(TrialFinished(own_trial, new, (own_trial and new.elapsed_s) or 0.0, remaining))

    def refuse(self, trial: TrialSpec, failure: Failure) -> None:
        """Raise UsageError for bad input, if nothing has run yet at all."""
        if not self._directory.has_run():
            raise UsageError(failure.message)

    def _learn(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in what ended meanwhile: the most work per second."""
        for trial in trials:
            if trial.number in self._learnt or not trial.state.is_finished():
                continue
            self._learnt.add(trial.number)
            record = record_of(trial)
            spec = self._space.trial(trial.user_attrs["point"])
            if isinstance(spec, TrialSpec) and record.timing is not None and is_feasible(trial):
                work = work_per_step(spec, self._goals[0]) or 0.0
                self._best_rate = max(self._best_rate, work / record.timing.mean_step_s)

    def _next(self, trials: Sequence[FrozenTrial], history: Sequence[FrozenTrial]) -> Point | None:
        """Return the next point that is not known to be too large, None where there is none."""
        taken = {point_key(trial.user_attrs["point"]) for trial in trials} | self._refused
        listed = iter(self._listed)
        for _ in range(_PREDICTED_OOM_IN_A_ROW):
            excluded = taken | self._predicted_oom.keys()
            first = next((point for point in listed if point_key(point) not in excluded), None)
            proposal = first or self._next_point([*self._earlier, *history], excluded)
            if proposal is None or self._limits is None:
                return proposal
            trial = self._space.trial(proposal)
            assert isinstance(trial, TrialSpec)
            if (reason := too_large(self._ask, trial, self._limits)) is None:
                return proposal
            self._predicted_oom[point_key(proposal)] = reason
        return None

    def _best_earlier(self) -> list[Point]:
        """Return the point that led the earlier runs by the first objective; it runs first."""
        sign = 1 if self._directions[0] == "maximize" else -1
        able = [trial for trial in self._earlier if is_feasible(trial)]
        best = max(able, key=lambda trial: sign * trial.values[0], default=None)
        return [] if best is None else [best.user_attrs["point"]]

    def _exhausted(self) -> str:
        if count := len(self._predicted_oom):
            return f"every point was tried but {count} that cannot fit by the simulation"
        return "every point that can run was tried"

    def _begin(self, point: Point) -> Proposal | None:
        """Take a point; None where another worker has it, or the budget is spent meanwhile."""
        trial = self._space.trial(point)
        assert isinstance(trial, TrialSpec)
        lease = self._ledger.begin(point, trial.trial_id)
        if lease is None:
            self._refused.add(point_key(point))
            return None
        before = sum(other.number < lease.number for other in self._ledger.trials())
        if self._stopper.trials is not None and before >= self._stopper.trials:
            self._ledger.drop(lease, "the budget was spent by other workers meanwhile")
            return None
        factor = self._spec.prune_slower_than or (None if self._spec.method == "grid" else PRUNE_FACTOR)
        hold = self._held.enter_context(ExitStack())
        hold.callback(self._ledger.drop, lease, "interrupted")  # nothing happens where it has ended
        hold.enter_context(self._ledger.held(lease))
        self._under_way[trial.trial_id] = _Lease(trial, lease, hold)
        return Proposal((trial,), watch=pruner(trial, self._goals, self._best_rate, factor))

    def _measure_again(self, trials: Sequence[TrialSpec], repeat: int) -> None:
        """Run a fresh repeat of each finalist; each is kept before it counts."""
        lot = random.Random(f"{self._spec.seed}/{repeat}")
        self._scheduler.run(
            Finalists(lot.sample(trials, len(trials)), repeat, lot, self._directory, self._tell)
        )


def _memory_limits(sweep: SweepSpec) -> MemoryLimits | None:
    """Return the bounds on device bytes that a trial must meet, or None."""
    constraints = sweep.objective.constraints
    bounds = [c.bound for c in constraints if c.metric == "peak_device_bytes" and "<" in c.operator]
    limits = MemoryLimits(min(map(float, bounds), default=math.inf), sweep.run.memory_limit or math.inf)
    return None if limits == MemoryLimits() else limits
