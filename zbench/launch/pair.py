"""Samples of two versions of zbench: each is one repeat of every trial of a sweep, run by the version itself.

Each revision runs its own checkout: its sweep file, and the model and data beside it. Only the public command
line is used, so any two versions that have it can be compared.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from zbench import gpus
from zbench.errors import TrialsFailedError, UsageError
from zbench.launch.events import Event, Notice
from zbench.launch.executor import Attempt, SampleTask
from zbench.launch.process.sweeps import SweepsExecutor
from zbench.launch.revisions import Checkouts, Version
from zbench.launch.room import Bytes, held_bytes
from zbench.launch.samples import Side
from zbench.launch.scheduler import Proposal, Proposer, Scheduler
from zbench.record import lines
from zbench.record.record import Record
from zbench.record.store import StorageError


class Pair(Proposer):
    """Proposes one sample, or two that take turns; `ended` has how each ended, by the task's name."""

    def __init__(self, *tasks: SampleTask) -> None:
        self._left = tasks
        self.ended = dict[str, Attempt]()

    def propose(self, scheduler: Scheduler) -> Proposal | None:
        """Return all of them at once."""
        tasks, self._left = self._left, ()
        return Proposal(samples=tasks, lot=random.Random() if len(tasks) > 1 else None) if tasks else None

    def keep_sample(self, task: SampleTask, attempt: Attempt) -> None:
        """Note how a sample ended."""
        self.ended[task.name] = attempt


class Sampler:
    """Takes samples of two versions (`samples.SampleTaker`). Close it at the end."""

    def __init__(
        self,
        versions: Mapping[Side, Version],
        file: Path,
        settings: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """tell: told whether the samples of a pair are taken in turns, and else why not."""
        self._versions = versions
        self._settings = (*settings, "run.repeats=1")
        self._checkouts = Checkouts(file, tell)
        self._executor = SweepsExecutor()
        self._tell, self._last_notice = tell, ""
        self._last_samples: dict[Side, Sequence[Record]] = {}
        self._without_turns: set[str] = set()

        def on_event(event: Event) -> None:
            if isinstance(event, Notice):
                tell(event.text)

        self._scheduler = Scheduler(self._executor, Path("paired"), on_event)

    def take(self, side: Side) -> Sequence[Record]:
        """Return one repeat of every trial; UsageError or TrialsFailedError if the version cannot run it.

        StorageError if a disk is full meanwhile.

        A sample that was killed from outside is taken once more: hours of others should not be lost with it.
        """
        (attempt,) = self._ended(side)
        self.remember(side, _records(attempt, self._versions[side]))
        return self._last_samples[side]

    def remember(self, side: Side, sample: Sequence[Record]) -> None:
        """Note a sample of a side: what it needs decides whether it can take turns."""
        self._last_samples[side] = sample

    def take_in_turns(self, first: Side, second: Side) -> tuple[Sequence[Record], Sequence[Record]] | None:
        """Return one repeat of every trial of both, that took turns.

        None where they cannot: both sides must have been sampled before, in a part of the memory that leaves
        room for both; and both must know turns.
        """
        samples = list[Sequence[Record]]()
        why_not = self._why_not(first, second)
        if why_not is None:
            sides = (first, second)
            ended = self._ended(first, second)
            samples = [_records(one, self._versions[side]) for side, one in zip(sides, ended, strict=True)]
            took_turns = [one.result is not None and one.result["took_turns"] for one in ended]
            self._without_turns = {
                self._versions[side].name
                for side, sample, did in zip(sides, samples, took_turns, strict=True)
                if did is False and any(record.outcome == "ok" for record in sample)
            }
            if None in took_turns:  # one was killed, and taken again alone
                return None
            why_not = self._why_not(first, second)
        order = "in turns, step by step" if why_not is None else f"one after the other: {why_not}"
        notice = f"the two samples of a pair are taken {order}"
        if notice != self._last_notice:
            self._tell(notice)
            self._last_notice = notice
        return (samples[0], samples[1]) if why_not is None else None

    def _ended(self, *sides: Side) -> list[Attempt]:
        """Run a sample of each side, in turns if there are two; return how they ended."""
        pair = Pair(*map(self._task, sides))
        self._scheduler.run(pair)
        return [pair.ended[side] for side in sides]

    def _task(self, side: Side) -> SampleTask:
        version = self._versions[side]
        return SampleTask(side, version, self._checkouts.sweep_file(version), self._settings)

    def _why_not(self, *sides: Side) -> str | None:
        """Return why these sides cannot take turns, None where they can."""
        if self._without_turns:
            return f"no trial of {' and '.join(sorted(self._without_turns))} takes turns"
        if not all(self._last_samples.get(side) for side in sides):
            return "what they need is not known yet"
        each = [_most_held(self._last_samples[side]) for side in sides]
        needed = Bytes(*map(sum, zip(*each, strict=True)))
        free = Bytes(psutil.virtual_memory().available, gpus.free_bytes() if needed.gpu else 0)
        return None if needed.fits_into(free) else f"both need {needed}, and {free} are free"

    def close(self) -> None:
        """End what has begun."""
        self._executor.close()


def _records(attempt: Attempt, version: Version) -> list[Record]:
    """Return the records of a sample; UsageError, StorageError or TrialsFailedError if there are none."""
    if attempt.error is not None:
        kinds = {"usage": UsageError, "storage": StorageError}
        raise kinds.get(attempt.error.kind, TrialsFailedError)(attempt.error.message)
    assert attempt.result is not None, "it ended well"
    place = f"{version.name}: a record of its sweep"
    return [lines.decode(record, place) for record in attempt.result["trials"]]


def _most_held(sample: Sequence[Record]) -> Bytes:
    """Return the most that the ranks of a trial held at once, of each kind."""
    each = [held for record in sample if (held := held_bytes(record))]
    return Bytes(*map(max, zip(*each, strict=True))) if each else Bytes(0)
