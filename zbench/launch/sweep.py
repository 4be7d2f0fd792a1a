"""A whole sweep: its rounds and heats, and what is missing of it; every repeat is on disk as it ends."""

import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

from zbench.errors import OutOfTimeError, UsageError
from zbench.job.turns import SHORTEST
from zbench.launch.events import Notice, OnEvent, SweepStarted, TrialFinished
from zbench.launch.executor import Executor, Vacancy
from zbench.launch.references import References
from zbench.launch.room import Room
from zbench.launch.scheduler import Proposal, Proposer, Scheduler
from zbench.launch.yardsticks import alone_trial
from zbench.record.record import Failure, Record
from zbench.record.store import REFERENCES, RunDirectory, storage_errors
from zbench.spec.expand import Expansion
from zbench.spec.run import SLOW_UPDATE
from zbench.spec.trial import TrialSpec

T = TypeVar("T")

Repeat = tuple[TrialSpec, int]
"""A trial, and the number of a repeat of it."""

_NO_ROOM = "it and others need more than 80 % of the free memory; free some, or set `run.order: rounds`"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to run: the points, and the seed of their order.

    contenders: chooses from all records of a round the trials that need another repeat (`run.separate`).
    max_seconds: no repeat starts after this time; the one that runs is finished. trace: trace a step of every
    configuration's first repeat.
    """

    expansion: Expansion
    seed: int = 0
    contenders: Callable[[Sequence[Record]], Collection[str]] = lambda _: ()
    max_seconds: float = math.inf
    trace: bool = False


class Rounds(Proposer):
    """Proposes the repeats of a plan that are missing in a run directory, round by round."""

    def __init__(self, plan: SweepPlan, directory: RunDirectory, on_event: OnEvent) -> None:
        self._plan, self._directory, self._tell = plan, directory, on_event
        self._trials = {trial.trial_id: trial for trial in plan.expansion.trials}
        self._end = time.monotonic() + plan.max_seconds
        self._by_trial: dict[str, list[Record]] = {}
        self._contenders: Collection[str] = ()
        self._rounds = self._each_round()
        self._todo: list[Repeat] = []
        self._under_way: set[str] = set()
        self._room = Room()
        self._crowded: set[str] = set()
        self._take_turns = False
        self.nodes = min((trial.run.nodes for trial in plan.expansion.trials), default=1)
        for record in directory.records():
            self._remember(record)

    @property
    def left(self) -> int:
        """How many repeats are left according to the records so far."""
        return sum(
            max(0, self._wants(trial_id) - len(self._by_trial.get(trial_id, []))) for trial_id in self._trials
        )

    @property
    def is_over(self) -> bool:
        """Whether the plan's time is up."""
        return time.monotonic() >= self._end

    def begin(self) -> None:
        """Save the points that cannot run, and tell what is finished and what is left."""
        for point in self._plan.expansion.invalid:
            if point.trial_id not in self._by_trial:
                failure = Failure("invalid", point.reason)
                identity = (self._directory.run_id, point.trial_id, 0, point.axes, point.config)
                self._save(Record(*identity, "invalid", failure))
        trials = self._plan.expansion.trials
        finished = [record for record in self._directory.records() if record.outcome != "invalid"]
        axes = tuple(dict.fromkeys(key for trial in trials for key in trial.axes))
        self._tell(SweepStarted(self._directory.path, len(trials), self.left, finished, axes))
        self._todo = next(self._rounds, [])

    def propose(self, scheduler: Scheduler) -> Proposal | None:
        """Return the next heat of the round or, where none can be made, its next repeat."""
        trials = [trial for trial, _ in self._todo]
        if not trials:
            return None
        vacancy = scheduler.vacancy()
        self._take_turns = scheduler.takes_turns
        # several batches at once: the references of the whole round are computed side by side
        if vacancy.batches > 1 and not scheduler.request_references(trials):
            return None
        candidates = self._candidates(trials)
        if not scheduler.request_references(candidates):
            return None
        repeat = self._todo[0][1]
        lot = self._lot()
        heat = self._fitting(candidates, scheduler.references, vacancy)
        chosen = heat or trials[:1]
        ids = {trial.trial_id for trial in chosen}
        self._todo = [one for one in self._todo if one[0].trial_id not in ids]
        self._under_way |= ids
        return Proposal(
            tuple(chosen),
            repeat,
            lot if heat else None,
            has_room_for_alone=self._room.has_room_for_alone(heat),
            trace=self._plan.trace and repeat == 0,
        )

    def keep(self, trial: TrialSpec, record: Record) -> None:
        """Save a record, and tell that it is saved."""
        self._under_way.discard(trial.trial_id)
        if record.heat is None and self._take_turns and (why := self._why_alone(trial)):
            record = replace(record, warnings=[*record.warnings, f"ran alone, not in turns: {why}"])
        record = self._save(record)
        self._tell(TrialFinished(trial, record, record.elapsed_s or 0.0, self.left))
        if not self._todo and not self._under_way:
            self._todo = next(self._rounds, [])

    def refuse(self, trial: TrialSpec, failure: Failure) -> None:
        """Raise UsageError for bad input where no trial could do better."""
        first, *others = self._plan.expansion.trials
        if not self._directory.has_run() and all(other.workload == first.workload for other in others):
            raise UsageError(failure.message)

    def _each_round(self) -> Iterator[list[Repeat]]:
        """Yield the repeats of each round; the results of a round decide which trials are in the next."""
        round_number = 0
        self._contenders = self._plan.contenders(self._directory.records())
        while any(self._wants(trial_id) > round_number for trial_id in self._trials):
            todo = [
                (self._trials[trial_id], round_number)
                for trial_id in self._order(round_number)
                if not self._directory.holds(trial_id, round_number) and self._wants(trial_id) > round_number
            ]
            if todo:
                yield todo
            round_number += 1
            self._contenders = self._plan.contenders(self._directory.records())

    def _order(self, round_number: int) -> list[str]:
        """Return the random order of a round. Of the trials that take turns, the leaders come first, then
        those of one workload together, so that they share heats.
        """
        order = shuffled(list(self._trials), seed=self._plan.seed, round_number=round_number)
        able = {trial_id: trial for trial_id, trial in self._trials.items() if can_take_turns(trial)}
        typical = {
            trial_id: statistics.median(times)
            for trial_id, records in self._by_trial.items()
            if trial_id in able
            and (times := [record.timing.mean_step_s for record in records if record.timing is not None])
        }
        if not typical:
            return order
        fastest = sorted(typical, key=lambda trial_id: typical[trial_id])
        size = shares(len(able), min(trial.run.heat for trial in able.values()))
        groups = by_workload(able[trial_id] for trial_id in fastest)
        leaders = {trial.trial_id for group in groups for trial in group[:size]}
        return sorted(order, key=lambda one: (one not in fastest[:size], one not in leaders))

    def _wants(self, trial_id: str) -> int:
        """Return how many repeats a configuration needs, by the records so far; none after a failure."""
        records = self._by_trial.get(trial_id, [])
        run = self._trials[trial_id].run
        if any(record.outcome != "ok" for record in records):
            return len(records)
        if len(records) < run.repeats:
            return run.repeats
        return len(records) + (trial_id in self._contenders)

    def _candidates(self, trials: Sequence[TrialSpec]) -> list[TrialSpec]:
        """Return the trials of a round that take turns next if there is memory: heats are of equal size.

        Configurations of one workload share a heat if possible: they are compared, and share one `alone`.
        """
        able = [trial for trial in trials if self._take_turns and can_take_turns(trial)]
        if not able:
            return []
        most = min(trial.run.heat for trial in able)
        heat = list[TrialSpec]()
        size = shares(len(able), most)
        for group in by_workload(able):
            share = group[: shares(len(group), most)]
            if len(heat) < size and len(heat) + len(share) <= most:
                heat += share
        return heat

    def _fitting(
        self, heat: Sequence[TrialSpec], references: References, vacancy: Vacancy
    ) -> list[TrialSpec]:
        """Return those of a heat that fit into memory beside one another; `_crowded` notes who does not.

        A single configuration takes turns with the machine's yardstick, if it uses that.
        """
        fitting = self._room.share(heat, references.most_bytes, vacancy.bytes)
        if len(heat) > 1:
            known_ids = {
                t.trial_id for t in heat if math.isfinite(self._room.needed(t, references.most_bytes).host)
            }
            beside = {trial.trial_id for trial in fitting} if len(fitting) > 1 else set()
            self._crowded = (self._crowded | known_ids) - beside
        return fitting if len(fitting) > 1 or (len(heat) == 1 and heat[0].run.wants("machine")) else []

    def _lot(self) -> random.Random:
        """Return the random generator of a heat's turns."""
        return random.Random(f"{self._plan.seed}/{self._todo[0][1]}/{len(self._todo)}")

    def _why_alone(self, trial: TrialSpec) -> str:
        """Return why a trial ran alone although others take turns; empty if none do."""
        if trial.run.order == "rounds":
            return ""
        if reason := what_keeps_from_turns(trial):
            others = sum(map(can_take_turns, self._trials.values()))
            return reason if others > 1 or trial.run.order == "turns" else ""
        return _NO_ROOM if trial.trial_id in self._crowded else ""

    def _save(self, record: Record) -> Record:
        """Save a record and return it as it is saved."""
        record = replace(record, run_id=self._directory.run_id)
        self._directory.append(record)
        self._remember(record)
        for warning in record.warnings:
            if warning.startswith(SLOW_UPDATE):
                self._tell(Notice(warning))
        return record

    def _remember(self, record: Record) -> None:
        self._by_trial.setdefault(record.trial_id, []).append(record)
        self._room.observe(record)


def run_sweep(
    plan: SweepPlan,
    directory: RunDirectory,
    make_executor: Callable[[], Executor],
    *,
    on_event: OnEvent = lambda _: None,
) -> None:
    """Run the repeats of a plan that are missing in a run directory; each is on disk as soon as it ends.

    make_executor: called if any repeat is missing. OutOfTimeError if the plan's time did not suffice.
    """
    rounds = Rounds(plan, directory, on_event)
    rounds.begin()
    if rounds.left:
        with storage_errors(), closing(make_executor()) as executor:
            Scheduler(executor, directory.path, on_event).run(rounds)
        if rounds.left:
            raise OutOfTimeError(f"stopped at --max-time; {rounds.left} repeats left")
    shutil.rmtree(directory.path / REFERENCES, ignore_errors=True)


def by_workload(trials: Iterable[TrialSpec]) -> Collection[list[TrialSpec]]:
    """Return the trials in groups that train the same on as many ranks and threads, each in their order."""
    groups: dict[str, list[TrialSpec]] = {}
    for trial in trials:
        groups.setdefault(alone_trial(trial).trial_id, []).append(trial)
    return groups.values()


def shares(count: int, most: int) -> int:
    """Divide `count` into the fewest equal shares of at most `most`; return the size of the largest."""
    return math.ceil(count / math.ceil(count / most))


def can_take_turns(trial: TrialSpec) -> bool:
    """Whether a trial is to take turns with others."""
    return trial.run.order != "rounds" and not what_keeps_from_turns(trial)


def what_keeps_from_turns(trial: TrialSpec) -> str:
    """Return why a trial cannot take turns, in words; empty if it can."""
    run = trial.run
    reasons = {
        "a script runs from its start to its end": trial.workload.command is not None,
        "its ranks are on several nodes": run.nodes > 1,
        f"a turn has {SHORTEST} steps; raise run.steps": run.steps < SHORTEST,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def shuffled(items: Sequence[T], *, seed: int, round_number: int) -> list[T]:
    """Return the items in an order that depends on seed and round alone.

    Every second round reverses the order of the round before, so that a linear drift favours no trial.
    """
    order = list(items)
    random.Random(f"{seed}/{round_number // 2}").shuffle(order)
    return order[::-1] if round_number % 2 else order
