"""An executor with a clock of its own and a script: it starts no process, and nothing in it takes time.

And trials without a sweep, and tasks without a scheduler, of real executors.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.launch.fake_worker import result_of
from zbench.launch.events import Notice
from zbench.launch.executor import (
    Attempt,
    Batch,
    Executor,
    MachineTask,
    OnLine,
    ReferenceTask,
    RepeatTask,
    Targets,
    Task,
    Vacancy,
)
from zbench.launch.process.local import LocalExecutor
from zbench.launch.trial import TrialRunner
from zbench.record.record import Failure

Script = Callable[[Task, OnLine], Attempt]
"""How a task ends; what it raises interrupts the scheduler."""


class OptionsScript:
    """Ends tasks as `workload.options` of their trials say (see `launch.fake_worker`), and keeps them."""

    def __init__(self, before_each: Callable[[Task], None] = lambda _: None) -> None:
        self.tasks: list[Task] = []
        self.machine = Attempt("ok", result={"version": 1, "seconds": {"compute": [1.0, 1.0]}})
        self._before_each = before_each

    def __call__(self, task: Task, on_line: OnLine) -> Attempt:
        self.tasks.append(task)
        self._before_each(task)
        options = task.trial.workload.options
        log = f"logs/{task.name}/rank0.log"
        if isinstance(task, MachineTask):
            return self.machine
        if isinstance(task, ReferenceTask):
            return _reference(task, options.get("reference"), log)
        return self._repeat(task, options, on_line, log)

    @property
    def references(self) -> list[ReferenceTask]:
        """The references that were computed, in order."""
        return [task for task in self.tasks if isinstance(task, ReferenceTask)]

    def _repeat(self, task: RepeatTask, options: dict[str, Any], on_line: OnLine, log: str) -> Attempt:
        match options.get("do"):
            case "crash_once" if self.tasks.count(task) > 1:
                pass
            case "crash" | "crash_once":
                return failed("crashed", "rank 0: RuntimeError: the model fell over", log)
            case "allocate":
                return Attempt("oom", Failure("oom", "rank 0: MemoryError: cannot allocate 7 GiB", log))
            case "hang":
                return Attempt("timeout", Failure("timeout", "not finished", log))
            case "no_result":
                return failed("crashed", "its processes ended without a result", log)
            case "disk_full":
                return failed("storage", "rank 0: No space left on device", log)
            case "step_on":
                for step in range(1, 1000):
                    line = {"phase": "timed", "step": step, "steps": 1000, "seconds": 0.1}
                    if (reason := on_line(task, line)) is not None:
                        return Attempt("timeout", Failure("pruned", reason, log))
        result = result_of(options, has_reference=task.reference is not None)
        return Attempt("ok", result=result, peak_rss_bytes=1000)


def _reference(task: ReferenceTask, failure: str | None, log: str) -> Attempt:
    failures = {
        "fails": ("crashed", "RuntimeError: no reference today"),
        "bad_input": ("usage", "no such module"),
        "disk_full": ("storage", "OSError: [Errno 28] No space left on device"),
        "no_file": ("crashed", "its processes ended without a result"),
    }
    if failure in failures:
        return failed(*failures[failure], log)
    task.path.parent.mkdir(exist_ok=True)
    task.path.write_text("reference")
    return Attempt("ok", peak_rss_bytes=1000)


def failed(kind: str, message: str, log: str | None = None) -> Attempt:
    """Return the end of a task that crashed."""
    return Attempt("crashed", Failure(kind, message, log))  # type: ignore[arg-type]


@dataclass
class _Begun:
    handle: int
    batch: Batch
    on_line: OnLine
    until: float


class World(Executor):
    """Runs batches in a time of its own. now: its clock. batches: all that were submitted, in order."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        at_once: int = 1,
        vacancy: Vacancy | None = None,
        takes_turns: bool = False,
        seed: int = 0,
    ) -> None:
        """at_once: how many batches run at the same time. vacancy: what it says that it has room for.

        seed: draws how long each batch takes, between 1 and 3 seconds.
        """
        self.script: Any = script or OptionsScript()
        self.takes_turns, self.is_closed, self.now = takes_turns, False, 0.0
        self.batches: list[Batch] = []
        self.most_at_once = 0
        self._at_once = at_once
        self._vacancy = vacancy or Vacancy(at_once)
        self._handles = itertools.count()
        self._lot = random.Random(seed)
        self._queue: dict[int, tuple[Batch, OnLine]] = {}
        self._begun: list[_Begun] = []
        self._ending: deque[tuple[int, Task, OnLine]] = deque()

    def submit(self, batch: Batch, on_line: OnLine) -> int:
        assert not self.is_closed
        handle = next(self._handles)
        self.batches.append(batch)
        self._queue[handle] = batch, on_line
        self._begin()
        return handle

    def next_ended(self) -> tuple[int, Task, Attempt]:
        if not self._ending:
            first = min(self._begun, key=lambda one: one.until)
            self.now = max(self.now, first.until)
            self._begun.remove(first)
            self._ending.extend((first.handle, task, first.on_line) for task in first.batch.tasks)
            self._begin()
        handle, task, on_line = self._ending.popleft()
        return handle, task, self.script(task, on_line)

    def withdraw(self, handle: int) -> bool:
        return self._queue.pop(handle, None) is not None

    def vacancy(self, nodes: int = 1) -> Vacancy:
        return self._vacancy

    def close(self) -> None:
        self.is_closed = True

    @property
    def heats(self) -> list[list[Task]]:
        """The repeats of each batch that takes turns."""
        return [
            [task for task in batch.tasks if isinstance(task, RepeatTask)]
            for batch in self.batches
            if len(batch.tasks) > 1
        ]

    def _begin(self) -> None:
        while self._queue and len(self._begun) < self._at_once:
            handle = next(iter(self._queue))
            until = self.now + self._lot.uniform(1, 3)
            self._begun.append(_Begun(handle, *self._queue.pop(handle), until))
        self.most_at_once = max(self.most_at_once, len(self._begun))


def local_runner(
    run_dir: Path,
    base_dir: Path,
    *,
    targets: Targets | None = None,
    rerun_disturbed: bool = True,
    on_notice: Callable[[str], None] = lambda _: None,
) -> TrialRunner:
    """Return a runner of trials on this machine. base_dir: where relative paths of the sweep begin."""
    executor = LocalExecutor(run_dir, base_dir, targets=targets)
    return TrialRunner(executor, run_dir, rerun_disturbed=rerun_disturbed, on_event=told_by(on_notice))


def told_by(on_notice: Callable[[str], None]) -> Callable[[Any], None]:
    """Return what tells the texts of notices alone."""
    return lambda event: on_notice(event.text) if isinstance(event, Notice) else None


def run(executor: Executor, task: Task, on_line: OnLine = lambda *_: None) -> Attempt:
    """Run one task alone and return how it ended."""
    handle = executor.submit(Batch((task,)), on_line)
    ended, same, attempt = executor.next_ended()
    assert (ended, same.name) == (handle, task.name)
    return attempt
