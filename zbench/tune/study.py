"""The search: ask for a point, take it, run it, tell what became of it, until there is reason to stop."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zbench.launch.events import Watch
from zbench.launch.oom_inference import KIND as IMPLIED
from zbench.launch.oom_inference import ImpliedOom
from zbench.record.record import Failure, Record
from zbench.spec.trial import TrialSpec
from zbench.tune.history import Observation, best_first
from zbench.tune.ledger import Lease, Ledger, LedgerEntry
from zbench.tune.memory import Ask, too_large, with_simulated
from zbench.tune.objective import Scorer
from zbench.tune.prune import pruner, work_per_step
from zbench.tune.samplers import Proposal, Proposer
from zbench.tune.space import Point, Space, point_key
from zbench.tune.stop import Stopper

_POLL_SECONDS = 0.5
_PREDICTED_OOM_IN_A_ROW = 200
_PRIORS_FIRST = 3


class Evaluate(Protocol):
    """Runs one repeat of one trial."""

    def __call__(self, trial: TrialSpec, repeat: int, watch: Watch | None) -> Record:
        """Return the record; `watch` sees each progress line and may end the trial by returning a reason."""


class Listener(Protocol):
    """Hears what the search does."""

    def began(self, trial: TrialSpec) -> None:
        """A trial begins."""

    def ended(self, trial: TrialSpec, records: Sequence[Record], seconds: float, left: int) -> None:
        """A trial is in the ledger. left: how many the budget still allows."""


@dataclass(frozen=True, slots=True)
class StudySetup:
    """How to search. `priors` are observations of earlier results: they teach, but are no results. simulate:
    says what a trial needs; without it none is left out.
    """

    space: Space
    scorer: Scorer
    proposer: Proposer
    stopper: Stopper
    prune_factor: float | None = None
    imply_oom: bool = True
    every_point: bool = False
    priors: Sequence[Observation] = ()
    simulate: Ask | None = None


@dataclass(slots=True)
class Knowledge:
    """What the records seen so far imply for points that have not run."""

    implied: ImpliedOom = field(default_factory=ImpliedOom)
    predicted_oom: dict[str, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)


class Search:
    """One process's part in a study."""

    def __init__(self, setup: StudySetup, ledger: Ledger, evaluate: Evaluate, listener: Listener) -> None:
        self._setup, self._ledger = setup, ledger
        self._evaluate, self._listener = evaluate, listener
        self._known = Knowledge()
        self._refused: set[str] = set()
        self._limit = _memory_limit(setup)

    @property
    def predicted_oom(self) -> dict[str, str]:
        """Return the points that were not tried because they cannot fit by the simulation, and why."""
        return dict(self._known.predicted_oom)

    def run(self) -> str:
        """Search until there is reason to stop and no other worker runs anything; return the reason."""
        while True:
            reason = self._search()
            if not any(entry.running for entry in self._ledger.entries()):
                return reason
            time.sleep(_POLL_SECONDS)  # one that is lost meanwhile is run again here

    def _search(self) -> str:
        while True:
            if self._ledger.reap():
                self._refused.clear()
            entries = self._ledger.entries()
            self._learn(entries)
            mine = [entry.observation for entry in entries if entry.host == self._ledger.worker.fingerprint]
            stop = self._setup.stopper
            reason = stop.spent(sum(map(_costs, entries))) or stop.flattened(mine)
            if reason is not None:
                return reason
            proposal = self._propose(entries, [*self._setup.priors, *mine])
            if proposal is None:
                return self._exhausted()
            self._try(proposal, entries)

    def _propose(self, entries: Sequence[LedgerEntry], history: Sequence[Observation]) -> Proposal | None:
        taken = {point_key(entry.point) for entry in entries} | self._refused
        earlier = best_first(self._setup.priors, self._setup.scorer.directions)[:_PRIORS_FIRST]
        for point in [*self._setup.space.included, *earlier]:
            if point_key(point) not in taken:
                return Proposal(point, {})
        for _ in range(_PREDICTED_OOM_IN_A_ROW):
            proposal = self._setup.proposer.propose(history, taken | self._known.predicted_oom.keys())
            if proposal is None:
                break
            reason = self._predict_oom(proposal.point)
            if reason is None:
                return proposal
            self._known.predicted_oom[point_key(proposal.point)] = reason
        return self._setup.proposer.propose(history, taken) if self._setup.every_point else None

    def _try(self, proposal: Proposal, entries: Sequence[LedgerEntry]) -> None:
        trial = self._setup.space.trial(proposal.point)
        assert isinstance(trial, TrialSpec)
        lease = self._ledger.begin(proposal.point, trial.trial_id, proposal.notes)
        if lease is None:
            self._refused.add(point_key(proposal.point))
            return
        trials = self._setup.stopper.budget.trials
        if (
            trials is not None and self._begun_before(lease) >= trials
        ):  # of several begun at once, the last give way
            self._ledger.drop(lease, "the budget was spent by other workers meanwhile")
            return
        began = time.monotonic()
        try:
            record = self._run(trial, lease, entries)
        except BaseException:
            self._ledger.drop(lease, "interrupted")
            raise
        if self._ledger.finish(lease, [record]):
            left = trials - sum(map(_costs, self._ledger.entries())) if trials is not None else 0
            self._listener.ended(trial, [record], time.monotonic() - began, max(0, left))

    def _run(self, trial: TrialSpec, lease: Lease, entries: Sequence[LedgerEntry]) -> Record:
        failure = self._known.implied.failure(trial) if self._setup.imply_oom else None
        if failure is not None:
            return not_run(trial, failure)
        self._listener.began(trial)
        watch = pruner(trial, self._setup.scorer.goals, self._best_rate(entries), self._setup.prune_factor)
        with self._ledger.held(lease):
            record = self._evaluate(trial, 0, watch)
        ask = self._setup.simulate
        return record if ask is None or self._limit is None else with_simulated(record, ask, trial)

    def _begun_before(self, lease: Lease) -> int:
        return sum(_costs(entry) for entry in self._ledger.entries() if entry.number < lease.trial.number)

    def _learn(self, entries: Sequence[LedgerEntry]) -> None:
        """Take in records that are new, of machines of this kind only."""
        for entry in entries:
            if entry.running or entry.number in self._known.seen:
                continue
            self._known.seen.add(entry.number)
            if entry.host != self._ledger.worker.fingerprint:
                continue
            for record in entry.records:
                self._known.implied.observe(record)

    def _predict_oom(self, point: Point) -> str | None:
        trial = self._setup.space.trial(point)
        ask = self._setup.simulate
        first = not self._known.seen  # is always measured: a search ends with a figure
        if ask is None or first or self._limit is None or not isinstance(trial, TrialSpec):
            return None
        return too_large(ask, trial, self._limit)

    def _best_rate(self, entries: Sequence[LedgerEntry]) -> float | None:
        """Return work per second of the fastest feasible trial so far on this kind of machine."""
        rates = []
        for entry in entries:
            score, trial = entry.observation.score, self._setup.space.trial(entry.point)
            if entry.host != self._ledger.worker.fingerprint or score is None or not score.feasible:
                continue
            work = work_per_step(trial, self._setup.scorer.goals[0]) if isinstance(trial, TrialSpec) else None
            rates += [work / r.timing.median_step_s for r in entry.records if r.timing is not None and work]
        return max(rates, default=None)

    def _exhausted(self) -> str:
        count = len(self._known.predicted_oom)
        if count == 0 or self._setup.every_point:
            return "every point that can run was tried"
        return f"every point was tried but {count} that cannot fit by the simulation"


def not_run(trial: TrialSpec, failure: Failure) -> Record:
    """Return the record of a trial that was not run, because it is known to run out of memory."""
    return Record("", trial.trial_id, 0, trial.axes, trial.config(), "oom", failure)


def _costs(entry: LedgerEntry) -> bool:
    """Whether a point took a place in the budget: all but those that were recorded without being run."""
    return not any(record.error is not None and record.error.kind == IMPLIED for record in entry.records)


def _memory_limit(setup: StudySetup) -> float | None:
    """Return the tightest bound on device bytes that a trial must meet, or None."""
    bounds = [
        c.bound for c in setup.scorer.constraints if c.metric == "peak_device_bytes" and "<" in c.operator
    ]
    limits: list[Any] = [*bounds, setup.space.sweep.run.memory_limit]
    return min((float(limit) for limit in limits if limit is not None), default=None)
