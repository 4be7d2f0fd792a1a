"""A search from start to finish in one process: ask for a point, take it, run it, tell what became of it,
until there is reason to stop; then the final round.
"""

import random
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from zbench.errors import UsageError
from zbench.estimate.client import Simulator
from zbench.job.progress import Watch
from zbench.launch.events import (
    Notice,
    OnEvent,
    ReferenceStarted,
    StepDone,
    SweepStarted,
    TrialFinished,
    TrialStarted,
)
from zbench.launch.executor import REFERENCE_PATIENCE, repeat_name
from zbench.launch.room import Room
from zbench.launch.sweep import can_take_turns
from zbench.launch.trial import TrialRunner
from zbench.record.record import Failure
from zbench.record.store import RunDirectory
from zbench.record.summary import summarize
from zbench.spec.run import RunSpec
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.findings import Final, SearchOutcome, front, importance, settle
from zbench.tune.forecast import (
    PRUNE_FACTOR,
    Ask,
    pruner,
    too_large,
    work_per_step,
)
from zbench.tune.ledger import Ledger, adopt, gather, open_study, record_of
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

_POLL_SECONDS = 0.5
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


class Session:
    """One process at work on one study. Every finished trial is in the run directory as soon as it ends."""

    def __init__(
        self, task: SearchTask, directory: RunDirectory, runner: TrialRunner, on_event: OnEvent
    ) -> None:
        self._task, self._sweep, self._spec = task, task.sweep, task.sweep.search
        self._directory, self._runner, self._tell = directory, runner, on_event
        self._goals, self._directions = task.sweep.objective.goals, directions_of(task.sweep.objective)
        self._space = Space(task.sweep)
        self._stopper = stopper_of(self._spec, self._directions, len(self._space.axes))
        self._limit = _memory_limit(task.sweep)
        self._best_rate, self._room = 0.0, Room()
        self._learnt, self._refused = set[int](), set[str]()
        self._predicted_oom: dict[str, str] = {}
        self._held = ExitStack()
        self._under_way = dict[str, tuple[TrialSpec, Trial, Watch, ExitStack]]()
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
            stopped = self._search()
            everywhere = ledger.trials()
            trials = ledger.of_this_kind(everywhere)
            gather(trials, directory)
            if self._task.is_worker:
                return SearchOutcome(Final(None), stopped, ledger.name)
        if unlike := len(everywhere) - len(trials):
            self._tell(Notice(f"{unlike} {_UNLIKE}"))
        for record in directory.records():
            self._room.observe(record)
        final = settle(directory.records, sweep.objective, self._measure_again, repeats=sweep.run.repeats)
        shutil.rmtree(directory.path / "references", ignore_errors=True)
        best = front(directory.records(), sweep.objective)
        shares = importance(trials, self._directions[0])
        return SearchOutcome(final, stopped, ledger.name, best, shares, self._predicted_oom)

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
        finished = self._directory.records()
        left = max(0, (self._stopper.trials or 0) - len(summarize(finished)))
        keys = tuple(axis.key for axis in self._space.axes)
        self._tell(SweepStarted(self._directory.path, self._spec.trials, left, finished, keys))
        if self._limit is not None:
            self._tell(Notice("points are simulated first; one that cannot fit the memory does not run"))

    def _search(self) -> str:
        """Search until there is reason to stop and no other worker runs anything; return the reason."""
        while True:
            if self._ledger.reap():
                self._refused.clear()
            trials = self._ledger.trials()
            own = self._ledger.of_this_kind(trials)
            self._learn(own)
            stopped = self._stopper.spent(len(trials)) or self._stopper.flattened(own)
            full = len(self._under_way) >= self._runner.executor.room(self._sweep.run.nodes)
            point = None if stopped or full else self._propose(trials, own)
            if point is not None:
                self._begin(point)
            elif self._under_way:
                self._finish(self._runner.executor.first(list(self._under_way)))
            elif not any(trial.state == TrialState.RUNNING for trial in trials):
                return stopped or self._exhausted()
            else:
                time.sleep(_POLL_SECONDS)  # one that is lost meanwhile is run again here

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

    def _propose(self, trials: Sequence[FrozenTrial], history: Sequence[FrozenTrial]) -> Point | None:
        """Return the next point that is not known to be too large, None where there is none."""
        taken = {point_key(trial.user_attrs["point"]) for trial in trials} | self._refused
        included = iter(self._space.included)
        for _ in range(_PREDICTED_OOM_IN_A_ROW):
            known = taken | self._predicted_oom.keys()
            listed = next((point for point in included if point_key(point) not in known), None)
            proposal = listed or self._next_point(history, known)
            if proposal is None or self._limit is None:
                return proposal
            trial = self._space.trial(proposal)
            assert isinstance(trial, TrialSpec)
            if (reason := too_large(self._ask, trial, self._limit)) is None:
                return proposal
            self._predicted_oom[point_key(proposal)] = reason
        return None

    def _exhausted(self) -> str:
        if count := len(self._predicted_oom):
            return f"every point was tried but {count} that cannot fit by the simulation"
        return "every point that can run was tried"

    def _begin(self, point: Point) -> None:
        """Take a point and begin its trial."""
        trial = self._space.trial(point)
        assert isinstance(trial, TrialSpec)
        lease = self._ledger.begin(point, trial.trial_id)
        if lease is None:
            self._refused.add(point_key(point))
            return
        before = sum(other.number < lease.number for other in self._ledger.trials())
        if self._stopper.trials is not None and before >= self._stopper.trials:
            self._ledger.drop(lease, "the budget was spent by other workers meanwhile")
            return
        factor = self._spec.prune_slower_than or (None if self._spec.method == "grid" else PRUNE_FACTOR)
        watch = self._watching(trial, pruner(trial, self._goals, self._best_rate, factor))
        hold = self._held.enter_context(ExitStack())
        hold.callback(self._ledger.drop, lease, "interrupted")  # nothing happens where it has ended
        hold.enter_context(self._ledger.held(lease))
        self._under_way[repeat_name(trial.trial_id, 0)] = trial, lease, watch, hold
        self._tell(TrialStarted(trial, 0))
        self._prepare(trial)
        self._runner.expect([(trial, 0)], watch=watch)

    def _finish(self, name: str) -> None:
        """Keep what became of a trial, as soon as it has ended."""
        trial, lease, watch, hold = self._under_way.pop(name)
        with hold:
            if self._ledger.finish(lease, self._runner.run(trial, watch=watch)):
                self._collect(trial)

    def _collect(self, trial: TrialSpec) -> None:
        """Bring what ended, here and at other workers, to the run directory, and tell it."""
        trials, budget = self._ledger.trials(), self._stopper.trials
        left = max(0, budget - len(trials)) if budget is not None else 0
        for record in gather(self._ledger.of_this_kind(trials), self._directory):
            own = trial if record.trial_id == trial.trial_id else None
            self._tell(TrialFinished(own, record, (own and record.elapsed_s) or 0.0, left))

    def _measure_again(self, trials: Sequence[TrialSpec], repeat: int) -> None:
        """Run a fresh repeat of each finalist, in turns or at once where that can be; keep each before it
        counts."""
        lot = random.Random(f"{self._spec.seed}/{repeat}")
        trials = lot.sample(trials, len(trials))
        for trial in trials:
            self._prepare(trial)
            self._tell(TrialStarted(trial, repeat))
        free = self._runner.executor.free_bytes()
        able = [trial for trial in trials if self._runner.takes_turns and can_take_turns(trial)]
        heat = fit if len(fit := self._room.share(able, self._runner.most_bytes, free)) > 1 else []
        beside = self._room.has_room_for_alone(heat)
        in_turns = self._runner.run_heat(heat, repeat, self._watching, lot, alone=beside) if heat else ()
        alone = [trial for trial in trials if trial not in heat]
        for trial in alone:
            self._runner.expect([(trial, repeat)], watch=self._watching(trial))
        rest = ((t, self._runner.run(t, repeat=repeat, watch=self._watching(t))) for t in alone)
        for trial, record in chain(in_turns, rest):
            record = replace(record, run_id=self._directory.run_id)
            self._directory.append(record)
            self._tell(TrialFinished(trial, record, record.elapsed_s or 0.0, 0))

    def _prepare(self, trial: TrialSpec) -> None:
        """Have the reference of a trial; UsageError for bad input, if nothing has run yet at all."""
        if not self._runner.has_reference(trial):
            self._tell(ReferenceStarted(trial))
            reference = self._runner.reference(trial, self._watching(trial))
            if isinstance(reference, Failure) and reference.kind == "usage" and not self._directory.has_run():
                raise UsageError(reference.message)

    def _watching(self, trial: TrialSpec, judge: Watch | None = None) -> Watch:
        """Return what tells each step of a trial, and ends it for the reason that `judge` gives."""

        def on_line(line: dict[str, Any]) -> str | None:
            self._tell(StepDone(trial, line))
            return None if judge is None else judge(line)

        return on_line


def _memory_limit(sweep: SweepSpec) -> float | None:
    """Return the tightest bound on device bytes that a trial must meet, or None."""
    constraints = sweep.objective.constraints
    bounds = [c.bound for c in constraints if c.metric == "peak_device_bytes" and "<" in c.operator]
    limits = [*bounds, sweep.run.memory_limit]
    return min((float(limit) for limit in limits if limit is not None), default=None)
