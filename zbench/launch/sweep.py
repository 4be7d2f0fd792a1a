"""A whole sweep: order, repeats, references, resume; every repeat is on disk before the next begins."""

import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from zbench.errors import OutOfTimeError, UsageError
from zbench.job.progress import Watch
from zbench.job.turns import SHORTEST
from zbench.launch.events import (
    Notice,
    OnEvent,
    ReferenceStarted,
    StepDone,
    SweepStarted,
    TrialFinished,
    TrialStarted,
)
from zbench.launch.executor import Executor, repeat_name
from zbench.launch.room import Room
from zbench.launch.trial import Repeat, TrialRunner
from zbench.launch.yardsticks import alone_trial
from zbench.record.record import Failure, Record
from zbench.record.store import REFERENCES, RunDirectory, storage_errors
from zbench.spec.expand import Expansion
from zbench.spec.run import SLOW_UPDATE
from zbench.spec.trial import TrialSpec

T = TypeVar("T")

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


class SweepRun:
    """Runs the repeats of a plan that are missing in a run directory."""

    def __init__(
        self,
        plan: SweepPlan,
        directory: RunDirectory,
        make_executor: Callable[[], Executor],
        *,
        on_event: OnEvent = lambda _: None,
    ) -> None:
        """make_executor: called if any repeat is missing."""
        self._plan, self._directory = plan, directory
        self._make_executor, self._tell = make_executor, on_event
        self._trials = {trial.trial_id: trial for trial in plan.expansion.trials}
        self._by_trial: dict[str, list[Record]] = {}
        self._contenders: Collection[str] = ()
        self._last_end = 0.0
        self._room = Room()
        self._crowded: set[str] = set()
        self._told: set[str] = set()
        self._begun: dict[str, list[TrialSpec]] = {}
        for record in directory.records():
            self._remember(record)

    def run(self) -> None:
        """Run the missing repeats; each one is in the run directory before the next begins."""
        for point in self._plan.expansion.invalid:
            if point.trial_id not in self._by_trial:
                failure = Failure("invalid", point.reason)
                identity = (self._directory.run_id, point.trial_id, 0, point.axes, point.config)
                self._keep(Record(*identity, "invalid", failure))
        trials = self._plan.expansion.trials
        finished = [record for record in self._directory.records() if record.outcome != "invalid"]
        axes = tuple(dict.fromkeys(key for trial in trials for key in trial.axes))
        self._tell(SweepStarted(self._directory.path, len(trials), self._left(), finished, axes))
        if self._left():
            with storage_errors():
                self._run_missing(time.monotonic() + self._plan.max_seconds)
        shutil.rmtree(self._directory.path / REFERENCES, ignore_errors=True)

    def _run_missing(self, deadline: float) -> None:
        with TrialRunner(
            self._make_executor(),
            self._directory.path,
            on_notice=lambda text: self._tell(Notice(text)),
        ) as runner:
            for problem in runner.executor.wait_until_ready():
                self._tell(Notice(f"cannot import {problem}"))
            for repeats in self._rounds():
                self._run_round(runner, repeats, deadline)

    def _run_round(self, runner: TrialRunner, todo: list[Repeat], deadline: float) -> None:
        """Run the repeats of a round: in their order or, where several run at once, as they end."""
        executor = runner.executor
        waiting = {repeat_name(trial.trial_id, repeat): (trial, repeat) for trial, repeat in todo}
        if executor.runs_ahead and time.monotonic() < deadline:
            self._begin_all(runner, todo)
        while waiting and time.monotonic() < deadline:
            self._run_next(runner, waiting)
        under_way = {name: waiting.pop(name) for name in executor.withdraw(list(waiting))}
        while under_way:
            self._run_next(runner, under_way)
        if waiting:
            raise OutOfTimeError(f"stopped at --max-time; {self._left()} repeats left")

    def _run_next(self, runner: TrialRunner, todo: dict[str, Repeat]) -> None:
        """Run the next heat or repeat, and remove it from `todo`, whose keys are the tasks' names."""
        name, ahead = runner.executor.first(list(todo)), runner.executor.runs_ahead
        if heat := self._begun.get(name, []) if ahead else self._make_heat(runner, list(todo.values())):
            self._run_heat(runner, heat, todo)
        else:
            self._run_one(runner, name, *todo.pop(name))

    def _begin_all(self, runner: TrialRunner, todo: list[Repeat]) -> None:
        """Begin all heats and repeats of a round, after the references that they need."""
        trials = [trial for trial, _ in todo]
        if not all(map(runner.has_reference, trials)):
            self._tell(Notice("computing the references"))
            runner.expect_references(trials)
            for trial in trials:
                self._prepare(runner, trial)
        self._tell(Notice(f"repeats submitted together: {len(todo)}"))
        repeat, left, alone = todo[0][1], list(todo), list[Repeat]()
        trace = self._plan.trace and repeat == 0
        while left:
            if heat := self._make_heat(runner, left):
                runner.expect_heat(heat, repeat, self._lot(left), trace=trace)
                self._begun |= {repeat_name(trial.trial_id, repeat): heat for trial in heat}
                left = [one for one in left if one[0] not in heat]
            else:
                alone.append(left.pop(0))
        runner.expect(alone, trace=trace)
        self._last_end = time.monotonic()

    def _rounds(self) -> Iterator[list[Repeat]]:
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
        records, run = self._by_trial.get(trial_id, []), self._trials[trial_id].run
        if any(record.outcome != "ok" for record in records):
            return len(records)
        if len(records) < run.repeats:
            return run.repeats
        return len(records) + (trial_id in self._contenders)

    def _left(self) -> int:
        """Return how many repeats are left according to the records so far."""
        return sum(
            max(0, self._wants(trial_id) - len(self._by_trial.get(trial_id, []))) for trial_id in self._trials
        )

    def _run_one(self, runner: TrialRunner, name: str, trial: TrialSpec, repeat: int) -> None:
        """Run one repeat, whose task has this name."""
        has_begun = runner.executor.has_begun(name)
        self._prepare(runner, trial)
        began = self._last_end if has_begun else time.monotonic()
        self._tell(TrialStarted(trial, repeat))
        trace = self._plan.trace and repeat == 0
        record = runner.run(
            trial, repeat=repeat, watch=lambda line: self._tell(StepDone(trial, line)), trace=trace
        )
        if runner.takes_turns and (why := self._why_alone(trial)):
            record = replace(record, warnings=[*record.warnings, f"ran alone, not in turns: {why}"])
        record = self._keep(record)
        self._last_end = time.monotonic()
        self._tell(TrialFinished(trial, record, self._last_end - began, self._left()))

    def _make_heat(self, runner: TrialRunner, todo: Sequence[Repeat]) -> list[TrialSpec]:
        """Return the trials of a round that take turns next, with their references computed: as many as fit
        into heats of equal size. `_crowded` notes those without room.

        Configurations of one workload share a heat if possible: they are compared, and share one `alone`. A
        single configuration takes turns with the machine's yardstick, if it uses that.
        """
        able = [trial for trial, _ in todo if runner.takes_turns and can_take_turns(trial)]
        if not able:
            return []
        most, heat = min(trial.run.heat for trial in able), list[TrialSpec]()
        wanted = shares(len(able), most)
        for group in by_workload(able):
            share = group[: shares(len(group), most)]
            if len(heat) < wanted and len(heat) + len(share) <= most:
                heat += share
        for trial in heat:
            self._prepare(runner, trial)
        fitting = self._room.share(heat, runner.most_bytes, runner.executor.free_bytes())
        if len(heat) > 1:
            known = {t.trial_id for t in heat if math.isfinite(self._room.needed(t, runner.most_bytes).host)}
            beside = {trial.trial_id for trial in fitting} if len(fitting) > 1 else set()
            self._crowded = (self._crowded | known) - beside
        return fitting if len(fitting) > 1 or (len(heat) == 1 and heat[0].run.wants("machine")) else []

    def _run_heat(self, runner: TrialRunner, heat: Sequence[TrialSpec], todo: dict[str, Repeat]) -> None:
        """Run one repeat of each of these trials, in turns, and remove them from the round."""
        _, repeat = next(iter(todo.values()))
        trace = self._plan.trace and repeat == 0

        def watch(trial: TrialSpec) -> Watch:
            return lambda line: self._tell(StepDone(trial, line))

        for trial in heat:
            self._tell(TrialStarted(trial, repeat))
        lot = self._lot(list(todo.values()))
        alone = self._room.has_room_for_alone(heat)
        for trial, record in runner.run_heat(heat, repeat, watch, lot, trace=trace, alone=alone):
            del todo[repeat_name(trial.trial_id, repeat)]
            record = self._keep(record)
            self._tell(TrialFinished(trial, record, record.elapsed_s or 0.0, self._left()))
        self._last_end = time.monotonic()

    def _lot(self, todo: Sequence[Repeat]) -> random.Random:
        """Return the random generator of a heat's turns; todo: the repeats left in the round."""
        return random.Random(f"{self._plan.seed}/{todo[0][1]}/{len(todo)}")

    def _why_alone(self, trial: TrialSpec) -> str:
        """Return why a trial ran alone although others take turns; empty if none do."""
        if trial.run.order == "rounds":
            return ""
        if reason := what_keeps_from_turns(trial):
            others = sum(map(can_take_turns, self._trials.values()))
            return reason if others > 1 or trial.run.order == "turns" else ""
        return _NO_ROOM if trial.trial_id in self._crowded else ""

    def _prepare(self, runner: TrialRunner, trial: TrialSpec) -> None:
        """Have the reference of a trial; UsageError for bad input, where no trial could do better."""
        if runner.has_reference(trial):
            return
        self._tell(ReferenceStarted(trial))
        reference = runner.reference(trial, lambda line: self._tell(StepDone(trial, line)))
        if isinstance(reference, Failure) and reference.kind == "usage" and not self._directory.has_run():
            first, *others = self._plan.expansion.trials
            if all(other.workload == first.workload for other in others):
                raise UsageError(reference.message)

    def _keep(self, record: Record) -> Record:
        """Save a record and return it as it is saved."""
        record = replace(record, run_id=self._directory.run_id)
        self._directory.append(record)
        self._remember(record)
        for warning in record.warnings:
            if warning.startswith(SLOW_UPDATE) and warning not in self._told:
                self._told.add(warning)
                self._tell(Notice(warning))
        return record

    def _remember(self, record: Record) -> None:
        self._by_trial.setdefault(record.trial_id, []).append(record)
        self._room.observe(record)


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
