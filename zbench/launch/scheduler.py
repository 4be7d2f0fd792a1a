"""The one loop that runs trials: submit what is proposed while there is room, and keep each record that ends.

A proposer decides what runs: the rounds of a sweep (`sweep`), a search, a pair of versions (`pair`), or
trials that are given (`trial`).
"""

import random
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from zbench.job.progress import Watch
from zbench.launch import turns
from zbench.launch.attempts import Retries, record_of
from zbench.launch.events import Notice, OnEvent, ReferenceStarted, StepDone, TrialStarted
from zbench.launch.executor import (
    Attempt,
    Batch,
    Executor,
    ReferenceTask,
    RepeatTask,
    SampleTask,
    Task,
    Vacancy,
)
from zbench.launch.references import References
from zbench.launch.yardsticks import Yardsticks
from zbench.record.record import Failure, Record
from zbench.spec.trial import TrialSpec

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Proposal:
    """One repeat of a trial, or of each of several that take turns; or samples of versions, likewise.

    lot: draws the order of the turns; None for a trial that takes none. has_room_for_alone: whether the
    yardstick of this name can run beside them. trace: trace a step afterwards. watch: sees each progress line
    of a trial that takes no turns; a reason that it returns ends the trial.
    """

    trials: tuple[TrialSpec, ...] = ()
    repeat: int = 0
    lot: random.Random | None = None
    has_room_for_alone: bool = True
    trace: bool = False
    watch: Watch | None = None
    samples: tuple[SampleTask, ...] = ()


class Proposer(ABC):
    """Says what runs next, and keeps what ended.

    nodes: how many nodes its proposals need. waits: whether there may be another proposal although nothing of
    it is under way here. is_over: whether what has not begun is to be given up.
    """

    nodes = 1
    waits = False

    @property
    def is_over(self) -> bool:
        """Whether what was submitted and has not begun is to be given up."""
        return False

    @abstractmethod
    def propose(self, scheduler: "Scheduler") -> Proposal | None:
        """Return what is to run next; None where nothing is to be begun now."""

    def keep(self, trial: TrialSpec, record: Record) -> None:
        """Save a record of a trial that it proposed, before anything else happens."""
        raise NotImplementedError

    def keep_sample(self, task: SampleTask, attempt: Attempt) -> None:
        """Keep how a sample ended that it proposed."""
        raise NotImplementedError

    def refuse(self, trial: TrialSpec, failure: Failure) -> None:
        """Raise UsageError if bad input of a trial, which its reference found, is to end everything."""


@dataclass(slots=True)
class _UnderWay:
    """A batch that was submitted, of a proposal or of a reference.

    heat: its name in records. remaining_tasks: how many have not ended.
    """

    proposal: Proposal | None
    yardsticks: Yardsticks
    heat: str = field(default_factory=lambda: secrets.token_hex(4))
    remaining_tasks: int = field(init=False)


class Scheduler:
    """Runs the proposals of proposers on an executor; a run's references and retries are the same for all."""

    def __init__(
        self, executor: Executor, run_dir: Path, on_event: OnEvent, *, rerun_disturbed: bool = True
    ) -> None:
        """run_dir: the run directory; its name is the records' run_id.

        rerun_disturbed: whether a repeat that other work disturbed runs once more.
        """
        is_paired = turns.paired_path() is not None
        self.takes_turns = executor.takes_turns and not is_paired
        self.references = References(run_dir.absolute(), self._note)
        self._executor, self._run_id, self._tell = executor, run_dir.name, on_event
        self._retries = Retries(rerun_disturbed=rerun_disturbed and not is_paired, tell=self._note)
        self._under_way: dict[int, _UnderWay] = {}
        self._postponed: list[Proposal] = []
        self._alone_credit = Counter[str]()
        self._told = set[str]()

    def run(self, proposer: Proposer) -> None:
        """Run until nothing is under way and nothing more is proposed."""
        while True:
            if proposer.is_over:
                self._withdraw()
            else:
                self._fill(proposer)
            if self._under_way:
                self._take(*self._executor.next_ended(), proposer)
            elif proposer.waits:
                time.sleep(_POLL_SECONDS)
            else:
                return

    def vacancy(self, nodes: int = 1) -> Vacancy:
        """Return what the executor has room for; see `executor.Executor`."""
        return self._executor.vacancy(nodes)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def request_references(self, trials: Iterable[TrialSpec]) -> bool:
        """Have the missing references of these trials computed; return whether all are known."""
        trials = list(trials)
        for task in self.references.missing(trials):
            self._tell(ReferenceStarted(task.trial))
            self._submit([task], _UnderWay(None, Yardsticks([], 0, self._alone_credit)))
        return self.references.are_known(trials)

    def _fill(self, proposer: Proposer) -> None:
        """Begin proposals while there is room, those first that waited for a reference."""
        while len(self._under_way) < self.vacancy(proposer.nodes).batches:
            proposal = self._postponed.pop() if self._postponed else proposer.propose(self)
            if proposal is None:
                return
            if not self.request_references(proposal.trials):
                self._postponed.append(proposal)
                return
            self._begin(proposal, proposer)

    def _begin(self, proposal: Proposal, proposer: Proposer) -> None:
        """Submit the repeats of a proposal; those whose reference found bad input end at once."""
        able: list[RepeatTask | SampleTask] = [*proposal.samples]
        for trial in proposal.trials:
            reference = self.references.of(trial)
            if isinstance(reference, Failure) and reference.kind == "usage":
                proposer.refuse(trial, reference)
            self._tell(TrialStarted(trial, proposal.repeat))
            path = reference if isinstance(reference, Path) else None
            row = self.references.of_row(trial)
            task = RepeatTask(trial, proposal.repeat, path, proposal.trace, row)
            if isinstance(reference, Failure) and reference.kind == "usage":
                proposer.keep(trial, record_of(self._run_id, task, Attempt("crashed", reference), None))
            else:
                able.append(task)
        takes_turns = proposal.lot is not None
        participants = [task.trial for task in able if takes_turns and isinstance(task, RepeatTask)]
        yardsticks = Yardsticks(
            participants, proposal.repeat, self._alone_credit, has_room=proposal.has_room_for_alone
        )
        if yardsticks.leaves_out_alone:
            self._note_once(
                "computing alone (see `of compute`) is timed in one of three repeats, to save time",
                about="price",
            )
        if able:
            self._submit([*yardsticks.tasks, *able], _UnderWay(proposal, yardsticks))

    def _submit(self, tasks: Sequence[Task], begun: _UnderWay) -> None:
        begun.remaining_tasks = len(tasks)
        lot = begun.proposal.lot if begun.proposal is not None else None
        batch = Batch(tuple(tasks), lot or random.Random())
        self._under_way[self._executor.submit(batch, partial(self._on_line, begun))] = begun

    def _on_line(self, begun: _UnderWay, task: Task, line: dict[str, Any]) -> str | None:
        """Tell a progress line of a configuration or a reference; return the reason to end it, if any."""
        if task in begun.yardsticks.tasks or isinstance(task, SampleTask):
            return None
        self._tell(StepDone(task.trial, line))
        watch = begun.proposal.watch if begun.proposal is not None else None
        return None if watch is None else watch(line)

    def _withdraw(self) -> None:
        """Give up what has not begun."""
        for handle in list(self._under_way):
            if self._executor.withdraw(handle):
                del self._under_way[handle]

    def _take(self, handle: int, task: Task, attempt: Attempt, proposer: Proposer) -> None:
        """Keep how a task ended, or have it run once more."""
        begun = self._under_way[handle]
        begun.remaining_tasks -= 1
        if begun.remaining_tasks == 0:
            del self._under_way[handle]
        if begun.yardsticks.take(task, attempt):
            if attempt.error is not None:
                self._note_once(f"a yardstick could not run: {attempt.error.message}", about=task.name)
            return
        took_turns = begun.proposal is not None and begun.proposal.lot is not None
        settled = self._retries.settled(task, attempt, took_turns=took_turns)
        if settled is None:
            alone = begun.proposal and replace(begun.proposal, lot=None)
            self._submit([task], replace(begun, proposal=alone))
        elif isinstance(task, ReferenceTask):
            self.references.take(task, settled)
        elif isinstance(task, RepeatTask) and begun.proposal is not None:
            self._keep(task, settled, begun, begun.proposal, proposer)
        elif isinstance(task, SampleTask):
            proposer.keep_sample(task, settled)

    def _keep(
        self, task: RepeatTask, attempt: Attempt, begun: _UnderWay, proposal: Proposal, proposer: Proposer
    ) -> None:
        """Have the record of a repeat saved; postpone one whose reference was damaged."""
        if self.references.forgot_damaged(task.trial, attempt):
            again = replace(proposal, trials=(task.trial,), lot=None)
            self._postponed.append(again)
            return
        record = record_of(self._run_id, task, attempt, self.references.of(task.trial))
        proposer.keep(task.trial, begun.yardsticks.applied(record, task.trial, begun.heat))

    def _note(self, text: str) -> None:
        self._tell(Notice(text))

    def _note_once(self, text: str, about: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._note(text)
