"""The executor of this machine: processes forked from a warm server, watched until none of them is left."""

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from zbench.errors import ZbenchError
from zbench.launch import affinity, disturbance, jobs, preload, turns
from zbench.launch.client import ServerLostError, WarmServer
from zbench.launch.executor import Attempt, JobFactory, RepeatTask, Task, TaskFiles, collected, patience
from zbench.launch.group import StopWhen, run_group
from zbench.launch.interpreter import environment_facts, interpreter_of
from zbench.launch.jobs import Targets, process_starts, resolved
from zbench.launch.messages import RankStart, Ready
from zbench.launch.outcome import classify, kernel_oom_kills
from zbench.launch.progress import ProgressTail, Watch
from zbench.record.record import Failure


@dataclass(frozen=True, slots=True)
class Group:
    """Processes to start: the function that all of them call, how each starts, where results and logs go.

    result_path: error files of the processes are beside it.
    """

    target: str
    starts: list[RankStart]
    result_path: Path
    logs: Path
    deadline: float
    stop_when: StopWhen | None = None
    memory_limit: int | None = None


class Launcher(AbstractContextManager["Launcher"]):
    """Keeps one warm server alive, and a scratch directory for its groups. A context manager."""

    def __init__(self, modules: tuple[str, ...], python: Path | None = None) -> None:
        """python: the interpreter of server and groups, if not the running one."""
        self.scratch = Path(tempfile.mkdtemp(prefix="zbench-"))
        self._modules, self._python = modules, python
        self._server = WarmServer(modules, self.scratch, python)

    def run(self, group: Group, *, log_name: str) -> Attempt:
        """Run the group to its end. log_name: the log directory as the record names it.

        If the server is killed meanwhile, another is started and the group counts as killed.
        """
        try:
            return self._run(group, log_name)
        except ServerLostError:
            self._replace_server()
            message = "the trial server was killed from outside"
            return Attempt("crashed", Failure("killed", message, f"{log_name}/rank0.log"))

    def wait_until_ready(self) -> Ready:
        """Return when the server has imported everything: how long it took, and what failed."""
        try:
            return self._server.wait_until_ready()
        except ServerLostError:
            self._replace_server()
        try:
            return self._server.wait_until_ready()
        except ServerLostError:
            raise ZbenchError("the trial server was killed twice while it started") from None

    @property
    def server_pid(self) -> int:
        """The process id of the server that is alive now."""
        return self._server.pid

    def close(self) -> None:
        """End the server and remove the scratch directory."""
        self._server.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace_server(self) -> None:
        self._server.close()
        self._server = WarmServer(self._modules, self.scratch, self._python)

    def _run(self, group: Group, log_name: str) -> Attempt:
        self.wait_until_ready()
        kills, before, own = kernel_oom_kills(), disturbance.snapshot(), time.process_time()
        end = run_group(
            self._server, group.target, group.starts, deadline=group.deadline, stop_when=group.stop_when
        )
        after, own = disturbance.snapshot(), time.process_time() - own
        outcome, error = classify(
            end,
            result_path=str(group.result_path),
            deadline=group.deadline,
            kernel_oom_kills=kernel_oom_kills() - kills,
            log=log_name,
            memory_limit=group.memory_limit,
        )
        if error is None:
            drop_silent_logs(group.logs)
        what = disturbance.between(before, after, own_cpu_seconds=end.cpu_seconds + own)
        return Attempt(outcome, error, disturbance=what)


class LocalExecutor:
    """Runs tasks in process groups of this machine. See `executor.Executor`.

    The server starts to import at once, in the background. Ranks that run under another interpreter
    (`engine_python`) have a server of their own, started with the first of them; references never do.
    """

    def __init__(self, run_dir: Path, base_dir: Path, *, targets: Targets | None = None) -> None:
        chosen = targets or jobs.DEFAULT_TARGETS
        self._jobs = JobFactory(run_dir.absolute(), base_dir.absolute(), chosen, resolved)
        self._modules = (*chosen.modules, *([preload.HUGE_PAGES] if chosen.many else []))
        self._launchers: dict[Path | None, Launcher] = {None: Launcher(self._modules)}
        self._cores = affinity.usable_cores()

    def wait_until_ready(self) -> tuple[str, ...]:
        """Return when the server has imported everything: the imports that failed, in words."""
        return self._launchers[None].wait_until_ready().problems

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task once; see `executor.Executor`."""
        log_name = self._jobs.log_name(task)
        try:
            launcher = self._launcher(task)
        except ZbenchError as error:
            return Attempt("crashed", Failure("crashed", str(error)))
        scratch = Path(tempfile.mkdtemp(dir=launcher.scratch))
        files = TaskFiles.fresh(scratch, self._jobs.run_dir / log_name)
        try:
            meeting, place = f"file://{scratch}/rendezvous", turns.socket_path()
            job = self._jobs.job(task, files, watched=watch is not None, init_method=meeting, turns=place)
            group = Group(
                target=self._jobs.target(task),
                starts=process_starts(job, files.logs, self._cores),
                result_path=files.result,
                logs=files.logs,
                deadline=patience(task, in_turns=place is not None),
                stop_when=_stopper(files.progress, watch),
                memory_limit=task.trial.run.memory_limit,
            )
            attempt = launcher.run(group, log_name=log_name)
            if place is not None and attempt.disturbance is not None:
                attempt = replace(attempt, disturbance=attempt.disturbance.without_others())
            attempt = replace(attempt, environment=environment_facts(task.trial, self._jobs.base_dir))
            return collected(task, files, attempt, f"{log_name}/rank0.log")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @property
    def server_pid(self) -> int:
        """The process id of the warm server."""
        return self._launchers[None].server_pid

    def close(self) -> None:
        """End the servers; nothing that was started is left."""
        for launcher in self._launchers.values():
            launcher.close()

    def _launcher(self, task: Task) -> Launcher:
        """Return the launcher of a task's interpreter; ZbenchError where no server starts under it."""
        wanted = interpreter_of(task.trial, self._jobs.base_dir) if isinstance(task, RepeatTask) else None
        if wanted not in self._launchers:
            launcher = Launcher(self._modules, wanted)
            try:
                launcher.wait_until_ready()
            except BaseException:
                launcher.close()
                raise
            self._launchers[wanted] = launcher
        return self._launchers[wanted]


def drop_silent_logs(logs: Path) -> None:
    """Remove empty logs, and their directory if all are empty."""
    for file in logs.iterdir():
        if file.stat().st_size == 0:
            file.unlink()
    with suppress(OSError):
        logs.rmdir()


def _stopper(progress: Path, watch: Watch | None) -> Callable[[], str | None] | None:
    if watch is None:
        return None
    tail = ProgressTail(progress)
    return lambda: tail.feed(watch)
