"""Trials without a sweep: each runs when it is asked for, with its reference."""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from zbench.job.progress import Watch
from zbench.launch.events import OnEvent
from zbench.launch.executor import Executor, targets_for
from zbench.launch.process.local import LocalExecutor
from zbench.launch.scheduler import Proposal, Proposer, Scheduler
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec


class Given(Proposer):
    """Proposals that are known beforehand; keeps their records in a list."""

    def __init__(self, *proposals: Proposal) -> None:
        self.records: list[Record] = []
        self._left = list(proposals)

    def propose(self, scheduler: Scheduler) -> Proposal | None:
        """Return the next one."""
        return self._left.pop(0) if self._left else None

    def keep(self, trial: TrialSpec, record: Record) -> None:
        """Append a record to the list."""
        self.records.append(record)


class TrialRunner(AbstractContextManager["TrialRunner"]):
    """Runs trials on an executor, which is closed with it. A context manager.

    run_dir: its name is the records' run_id. rerun_disturbed: see `Scheduler`.
    """

    def __init__(
        self,
        executor: Executor,
        run_dir: Path,
        *,
        rerun_disturbed: bool = True,
        on_event: OnEvent = lambda _: None,
    ) -> None:
        self.executor = executor
        self.run_dir = run_dir.absolute()
        self.scheduler = Scheduler(executor, run_dir, on_event, rerun_disturbed=rerun_disturbed)

    def run(
        self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None, trace: bool = False
    ) -> Record:
        """Run one repeat and return its Record, also of a failure.

        watch: sees each progress line; a reason that it returns ends the repeat. StorageError if a disk is
        full.
        """
        source = Given(Proposal((trial,), repeat, trace=trace, watch=watch))
        self.scheduler.run(source)
        return source.records[0]

    def run_heat(
        self, trials: Sequence[TrialSpec], repeat: int = 0, lot: random.Random | None = None
    ) -> list[Record]:
        """Run one repeat of each of these trials, in turns; return their Records as they ended."""
        source = Given(Proposal(tuple(trials), repeat, lot or random.Random()))
        self.scheduler.run(source)
        return source.records

    def __exit__(self, *_: object) -> None:
        self.executor.close()


def run_trial(trial: TrialSpec, *, run_dir: Path, base_dir: Path) -> Record:
    """Run one repeat of one trial on this machine and return its Record."""
    executor = LocalExecutor(run_dir, base_dir, targets=targets_for([trial]))
    with TrialRunner(executor, run_dir) as runner:
        return runner.run(trial)
