"""The final round of a search: its leaders run again, in turns where they fit beside one another."""

import random
from collections.abc import Sequence
from dataclasses import replace

from zbench.launch.events import OnEvent, TrialFinished
from zbench.launch.room import Room
from zbench.launch.scheduler import Proposal, Proposer, Scheduler
from zbench.launch.sweep import can_take_turns
from zbench.record.record import Record
from zbench.record.store import RunDirectory
from zbench.spec.trial import TrialSpec


class Finalists(Proposer):
    """Proposes one repeat of each finalist, and appends its record to the run directory."""

    def __init__(
        self,
        trials: Sequence[TrialSpec],
        repeat: int,
        lot: random.Random,
        directory: RunDirectory,
        on_event: OnEvent,
    ) -> None:
        """lot: draws the order of their turns."""
        self._trials = list(trials)
        self._repeat = repeat
        self._lot = lot
        self._directory, self._tell = directory, on_event
        self.nodes = min(trial.run.nodes for trial in trials)
        self._room = Room()
        for record in directory.records():
            self._room.observe(record)

    def propose(self, scheduler: Scheduler) -> Proposal | None:
        """Return those that take turns, and then the others one by one."""
        if not self._trials or not scheduler.request_references(self._trials):
            return None
        able = [trial for trial in self._trials if scheduler.takes_turns and can_take_turns(trial)]
        heat = self._room.share(able, scheduler.references.most_bytes, scheduler.vacancy().bytes)
        if len(heat) < 2:
            return Proposal((self._trials.pop(0),), self._repeat)
        self._trials = [trial for trial in self._trials if trial not in heat]
        beside = self._room.has_room_for_alone(heat)
        return Proposal(tuple(heat), self._repeat, self._lot, has_room_for_alone=beside)

    def keep(self, trial: TrialSpec, record: Record) -> None:
        """Append a record to the run directory, and tell that it is there."""
        record = replace(record, run_id=self._directory.run_id)
        self._directory.append(record)
        self._tell(TrialFinished(trial, record, record.elapsed_s or 0.0, 0))
