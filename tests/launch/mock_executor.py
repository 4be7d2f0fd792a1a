"""An executor that starts no process and takes no time. It does what `fake_worker` does, in this process."""

from collections.abc import Callable
from typing import Any

from zbench.job.progress import Watch
from zbench.launch.executor import Attempt, Executor, ReferenceTask, RepeatTask, Task
from zbench.record.record import Failure

from .fake_worker import result_of


class MockExecutor(Executor):
    """Ends tasks as `workload.options` of their trials say (see `fake_worker`), and notes what it was asked.

    before_each: called before each task; what it raises interrupts the task.
    """

    def __init__(self, before_each: Callable[[Task], None] = lambda _: None) -> None:
        self.tasks: list[Task] = []
        self.is_closed = False
        self._before_each = before_each

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Return how the task ends."""
        assert not self.is_closed
        self.tasks.append(task)
        self._before_each(task)
        log = f"logs/{task.name}/rank0.log"
        options = task.trial.workload.options
        if isinstance(task, ReferenceTask):
            return self._reference(task, options.get("reference"), log)
        return self._repeat(task, options, watch, log)

    def close(self) -> None:
        """Refuse tasks from now on."""
        self.is_closed = True

    @property
    def repeats(self) -> list[RepeatTask]:
        """Return the repeats that were run, in order."""
        return [task for task in self.tasks if isinstance(task, RepeatTask)]

    @property
    def references(self) -> list[ReferenceTask]:
        """Return the references that were computed, in order."""
        return [task for task in self.tasks if isinstance(task, ReferenceTask)]

    def _reference(self, task: ReferenceTask, what: str | None, log: str) -> Attempt:
        failures = {
            "fails": ("crashed", "RuntimeError: no reference today"),
            "bad_input": ("usage", "no such module"),
            "disk_full": ("storage", "OSError: [Errno 28] No space left on device"),
            "no_file": ("crashed", "its processes ended without a result"),
        }
        if what in failures:
            return Attempt("crashed", Failure(*failures[what], log))
        task.path.parent.mkdir(exist_ok=True)
        task.path.write_text("reference")
        return Attempt("ok")

    def _repeat(self, task: RepeatTask, options: dict[str, Any], watch: Watch | None, log: str) -> Attempt:
        match options.get("do"):
            case "crash_once" if self.tasks.count(task) > 1:
                pass
            case "crash" | "crash_once":
                return Attempt(
                    "crashed", Failure("crashed", "rank 0: RuntimeError: the model fell over", log)
                )
            case "allocate":
                return Attempt("oom", Failure("oom", "rank 0: MemoryError: cannot allocate 7 GiB", log))
            case "hang":
                return Attempt("timeout", Failure("timeout", "not finished", log))
            case "no_result":
                return Attempt("crashed", Failure("crashed", "its processes ended without a result", log))
            case "disk_full":
                return Attempt("crashed", Failure("storage", "rank 0: No space left on device", log))
            case "step_on" if watch is not None:
                for step in range(1, 1000):
                    line = {"phase": "timed", "step": step, "steps": 1000, "seconds": 0.1}
                    if (reason := watch(line)) is not None:
                        return Attempt("timeout", Failure("pruned", reason, log))
        return Attempt("ok", result=result_of(options, has_reference=task.reference is not None))
