"""The executor of this machine: processes forked from a trial server, watched until none of them is left."""

import json
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.launch import disturbance, executor, interleave
from zbench.launch.client import RankStart, Ready, ServerLostError, StopWhen, WarmServer
from zbench.launch.events import ProgressTail, Watch
from zbench.launch.executor import (
    MODULES,
    Attempt,
    Executor,
    JobFactory,
    RepeatTask,
    Targets,
    Task,
    TaskFiles,
    collected,
    patience,
)
from zbench.launch.hosts import run_on_hosts
from zbench.launch.outcome import classify, kernel_oom_kills
from zbench.record.record import Failure
from zbench.spec.environments import Environment, executable
from zbench.spec.peers import elsewhere
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob, ReferenceJob, threads_per_rank

_TOPOLOGY = "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"


class Launcher(AbstractContextManager["Launcher"]):
    """Keeps one trial server alive, and a scratch directory for its groups. A context manager."""

    def __init__(self, modules: tuple[str, ...] = MODULES, python: Path | None = None) -> None:
        """python: the interpreter of server and groups, if not the running one."""
        self.scratch = Path(tempfile.mkdtemp(prefix="zbench-"))
        self._modules, self._python = modules, python
        self._server = WarmServer(modules, self.scratch, python)

    def run(
        self,
        target: str,
        starts: Sequence[RankStart],
        files: TaskFiles,
        *,
        log_name: str,
        deadline: float,
        stop_when: StopWhen = lambda: None,
        memory_limit: int | None = None,
    ) -> Attempt:
        """Run processes that all call `target` to their end. log_name: the log directory, for the record.

        If the server is killed meanwhile, another is started and the processes count as killed.
        """
        self.wait_until_ready()
        kills, before, own = kernel_oom_kills(), disturbance.snapshot(), time.process_time()
        try:
            end = self._server.run_group(target, starts, deadline=deadline, stop_when=stop_when)
        except ServerLostError:
            self._replace_server()
            message = "the trial server was killed from outside"
            return Attempt("crashed", Failure("killed", message, f"{log_name}/rank0.log"))
        after, own = disturbance.snapshot(), time.process_time() - own
        outcome, error = classify(
            end,
            result_path=str(files.result),
            deadline=deadline,
            kernel_oom_kills=kernel_oom_kills() - kills,
            log=log_name,
            memory_limit=memory_limit,
        )
        if error is None and not any(log.stat().st_size for log in files.logs.iterdir()):
            shutil.rmtree(files.logs)
        what = disturbance.between(before, after, own_cpu_seconds=end.cpu_seconds + own)
        return Attempt(outcome, error, disturbance=what)

    def call(
        self, target: str, trial: dict[str, Any], world_size: int, base_dir: str = "", *, patience: float
    ) -> Any:
        """Return the JSON that `target` (`module:function`, given a RankJob) writes on rank 0.

        ZbenchError, with the ranks' reason, where they fail or take longer than `patience` seconds.
        """
        scratch = Path(tempfile.mkdtemp(dir=self.scratch))
        files = TaskFiles.fresh(scratch / "work", scratch / "logs")
        job = RankJob(
            trial, 0, world_size, f"file://{scratch}/meeting", "", base_dir, result_path=str(files.result)
        )
        starts = process_starts(job, files.logs, usable_cores())
        attempt = self.run(target, starts, files, log_name="logs", deadline=patience)
        if attempt.error is not None:
            raise ZbenchError(attempt.error.message)
        return json.loads(files.result.read_text())

    def wait_until_ready(self) -> Ready:
        """Return when the server has imported everything: how long it took, and what failed."""
        for _ in range(2):
            with suppress(ServerLostError):
                return self._server.wait_until_ready()
            self._replace_server()
        raise ZbenchError("the trial server was killed twice while it started")

    def close(self) -> None:
        """End the server and remove the scratch directory."""
        self._server.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace_server(self) -> None:
        self._server.close()
        self._server = WarmServer(self._modules, self.scratch, self._python)


class LocalExecutor(Executor):
    """Runs tasks in process groups of this machine. See `executor.Executor`.

    The server starts to import at once, in the background. Ranks that run under another interpreter
    (`engine_python`) have a server of their own, started with the first of them; references never do. A
    repeat whose trial names hosts (`run.hosts`) runs on these.
    """

    def __init__(self, run_dir: Path, base_dir: Path, *, targets: Targets | None = None) -> None:
        chosen = targets or executor.DEFAULT_TARGETS
        self._jobs = JobFactory(run_dir.absolute(), base_dir.absolute(), chosen, resolved)
        self.launchers: dict[Path | None, Launcher] = {None: Launcher(chosen.modules)}
        self._cores = usable_cores()

    def wait_until_ready(self) -> tuple[str, ...]:
        """Return when the server has imported everything: the imports that failed, in words."""
        return self.launchers[None].wait_until_ready().problems

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task once; see `executor.Executor`."""
        if isinstance(task, RepeatTask) and isinstance(task.trial.run.hosts, list):
            return run_on_hosts(self._jobs, task, watch)
        log_name = self._jobs.log_name(task)
        try:
            launcher = self._launcher(task)
        except ZbenchError as error:
            return Attempt("crashed", Failure("crashed", str(error)))
        scratch = Path(tempfile.mkdtemp(dir=launcher.scratch))
        files = TaskFiles.fresh(scratch, self._jobs.run_dir / log_name)
        tail = ProgressTail(files.progress)
        try:
            meeting, gate = f"file://{scratch}/rendezvous", interleave.socket_path()
            job = self._jobs.job(task, files, init_method=meeting, interleave=gate)
            attempt = launcher.run(
                self._jobs.target(task),
                process_starts(job, files.logs, self._cores),
                files,
                log_name=log_name,
                deadline=patience(task, interleaved=gate is not None),
                stop_when=lambda: tail.feed(watch) if watch is not None else None,
                memory_limit=task.trial.run.memory_limit,
            )
            if gate is not None and attempt.disturbance is not None:
                attempt = replace(attempt, disturbance=attempt.disturbance.without_others())
            attempt = replace(attempt, environment=environment_facts(task.trial, self._jobs.base_dir))
            return collected(task, files, attempt, f"{log_name}/rank0.log")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def close(self) -> None:
        """End the servers; nothing that was started is left."""
        for launcher in self.launchers.values():
            launcher.close()

    def _launcher(self, task: Task) -> Launcher:
        """Return the launcher of a task's interpreter; ZbenchError where no server starts under it."""
        python = interpreter_of(task.trial, self._jobs.base_dir) if isinstance(task, RepeatTask) else None
        if python not in self.launchers:
            launcher = Launcher(self._jobs.targets.modules, python)
            try:
                launcher.wait_until_ready()
            except BaseException:
                launcher.close()
                raise
            self.launchers[python] = launcher
        return self.launchers[python]


def run_once(target: str, trial: TrialSpec, base_dir: Path, *, patience: float) -> Any:
    """Return what `Launcher.call` does, of all ranks of a trial: to measure what is no trial."""
    with Launcher() as launcher:
        return launcher.call(target, resolved(trial), trial.run.world_size, str(base_dir), patience=patience)


def interpreter_of(trial: TrialSpec, base_dir: Path) -> Path | None:
    """Return the interpreter of a trial's ranks; None for the running one."""
    written = trial.engine.engine_python
    if trial.workload.command is not None:  # the command itself runs there; its watcher runs here
        return None
    return None if written is None else executable(written, base_dir)


def environment_facts(trial: TrialSpec, base_dir: Path) -> dict[str, str]:
    """Return interpreter and versions that a trial ran under, for its record; nothing for the running one."""
    engine = trial.engine
    if engine.engine_python is None:
        return {}
    if trial.workload.command is not None:
        return {"path": str(executable(engine.engine_python, base_dir))}
    environment = elsewhere(engine.engine, engine.engine_python, base_dir)
    return environment.facts() if isinstance(environment, Environment) else {}


def resolved(trial: TrialSpec) -> dict[str, Any]:
    """Return the trial as JSON values with its thread count fixed: a pinned rank cannot see all cores."""
    run = trial.run.model_copy(update={"threads_per_rank": threads_per_rank(trial)})
    return trial.model_copy(update={"run": run}).model_dump(mode="json")


def process_starts(
    job: RankJob | ReferenceJob, logs: Path, cores: Sequence[Sequence[int]]
) -> list[RankStart]:
    """Return how each process of a job starts; `job` is rank 0's. A reference may use all cores.

    cores: the logical CPUs of each usable core.
    """
    if isinstance(job, ReferenceJob):
        return [RankStart(pickle.dumps(job), str(logs / "rank0.log"), (job.error_stem, "reference"))]
    # a command starts its ranks by its own launcher
    has_command = job.trial.get("workload", {}).get("command") is not None
    starts = []
    for rank, cpus in enumerate([None] if has_command else assign(job.world_size, cores)):
        log, error = str(logs / f"rank{rank}.log"), (job.result_path, rank)
        starts.append(RankStart(pickle.dumps(replace(job, rank=rank)), log, error, cpus))
    return starts


def assign(world_size: int, cores: Sequence[Sequence[int]]) -> list[tuple[int, ...] | None]:
    """Return each rank's logical CPUs: equal runs of whole cores; None (all CPUs) where cores are short.

    cores: the logical CPUs of each physical core. Every rank gets the same number of cores, so that none is
    faster.
    """
    share = len(cores) // world_size
    if share == 0:
        return [None] * world_size
    return [
        tuple(cpu for core in cores[rank * share : (rank + 1) * share] for cpu in core)
        for rank in range(world_size)
    ]


def usable_cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs this process may use, grouped by physical core, in the machine's order."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        file = Path(_TOPOLOGY.format(cpu=cpu))
        key = file.read_text().strip() if file.exists() else str(cpu)
        groups.setdefault(key, []).append(cpu)
    return [tuple(cpus) for cpus in groups.values()]
