"""The executor of this machine: processes forked from a trial server, watched until none of them is left."""

import json
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.gpus import visible_gpus
from zbench.job.jobs import RankJob, ReferenceJob, threads_per_rank
from zbench.job.messages import RankStart, Ready
from zbench.job.progress import ProgressTail, Watch
from zbench.job.turns import Turns
from zbench.launch import executor, turns
from zbench.launch.disturbance import DisturbanceMeter
from zbench.launch.executor import (
    MODULES,
    Attempt,
    Executor,
    HeatTask,
    JobFactory,
    RepeatTask,
    Targets,
    Task,
    TaskFiles,
    collected,
    patience,
)
from zbench.launch.process.client import RankGroup, ServerLostError, WarmServer
from zbench.launch.process.outcome import classify, kernel_oom_kills
from zbench.launch.room import uses_cpu
from zbench.launch.turns import Contender, Seat
from zbench.record.record import Failure
from zbench.record.secrets import mask_files
from zbench.spec.environments import Environment, executable
from zbench.spec.peers import elsewhere
from zbench.spec.trial import TrialSpec
from zbench.topology import Host, node_of_device, this_host


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What the processes of a task do.

    target: what each calls with its start. log_name: the log directory, for the record. deadline: seconds.
    first: the first one's rank.
    """

    target: str
    starts: Sequence[RankStart]
    files: TaskFiles
    log_name: str
    deadline: float
    watch: Watch | None = None
    memory_limit: int | None = None
    first: int = 0


Share = tuple[int, int, str]
"""One machine's share of ranks that span several: its number, of how many, and where all ranks meet."""


class Launcher(AbstractContextManager["Launcher"]):
    """Keeps one trial server alive, and a scratch directory for its groups. A context manager."""

    def __init__(self, modules: tuple[str, ...] = MODULES, python: Path | None = None) -> None:
        """python: the interpreter of server and groups, if not the running one."""
        self.scratch = Path(tempfile.mkdtemp(prefix="zbench-"))
        self._modules, self._python = modules, python
        self._server = WarmServer(modules, self.scratch, python)

    def start(self, group: RankGroup, plan: ProcessPlan) -> None:
        """Start the processes of a group; ServerLostError if the server is killed meanwhile."""
        self.wait_until_ready()
        self._server.start_group(group, plan.target, plan.starts)

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
        starts = process_starts(job, files.logs, this_host())
        plan = ProcessPlan(target, starts, files, log_name="logs", deadline=patience)
        with Processes(self, plan) as processes:
            processes.advance()
            attempt = processes.attempt()
        if attempt.error is not None:
            raise ZbenchError(attempt.error.message)
        return json.loads(files.result.read_text())

    def wait_until_ready(self) -> Ready:
        """Return when the server has imported everything: how long it took, and what failed."""
        for _ in range(2):
            with suppress(ServerLostError):
                return self._server.wait_until_ready()
            self.replace_server()
        raise ZbenchError("the trial server was killed twice while it started")

    def close(self) -> None:
        """End the server and remove the scratch directory."""
        self._server.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def replace_server(self) -> None:
        """Start another server for the one that was killed; all that it had started is gone."""
        self._server.kill()
        self._server = WarmServer(self._modules, self.scratch, self._python)


class Processes(Contender):
    """The processes of one task: started, waited for, in turns if need be, and judged.

    seat: where they wait for their turns, if they take any.
    """

    def __init__(self, launcher: Launcher, plan: ProcessPlan, seat: Seat | None = None) -> None:
        self.plan, self.seat = plan, seat
        self._launcher = launcher
        tail, watch = ProgressTail(plan.files.progress), plan.watch
        stop_when = partial(tail.feed, watch) if watch is not None else lambda: None
        self._group = RankGroup(len(plan.starts), plan.deadline, stop_when)
        self._has_begun = self._is_lost = False
        self._meter, self._oom_kills, self._own_seconds, self.seconds = DisturbanceMeter(), 0, 0.0, 0.0

    def advance(self) -> None:
        """Start the processes, or let them go on; return when they wait at their seat, or are gone.

        If the server is killed meanwhile, another is started and the processes count as killed.
        """
        kills, own, began = kernel_oom_kills(), time.process_time(), time.monotonic()
        self._meter.begin()
        try:
            if not self._has_begun:
                self._has_begun = True
                self._launcher.start(self._group, self.plan)
            elif self.seat is not None:
                self.seat.go()
            self._group.advance(self.seat)
        except ServerLostError:
            self._launcher.replace_server()
            self._is_lost = True
        self._meter.end()
        self._oom_kills += kernel_oom_kills() - kills
        self._own_seconds += time.process_time() - own
        self.seconds += time.monotonic() - began

    def attempt(self) -> Attempt:
        """Return how the processes ended."""
        if self._is_lost:
            message = "the trial server was killed from outside"
            return Attempt("crashed", Failure("killed", message, f"{self.plan.log_name}/rank0.log"))
        logs, end, first = self.plan.files.logs, self._group.end, self.plan.first
        outcome, error = classify(
            replace(end, ranks=first + end.ranks, exits={first + r: code for r, code in end.exits.items()}),
            result_path=str(self.plan.files.result),
            deadline=self.plan.deadline,
            kernel_oom_kills=self._oom_kills,
            log=self.plan.log_name,
            memory_limit=self.plan.memory_limit,
        )
        if error is None and not any(log.stat().st_size for log in logs.iterdir()):
            shutil.rmtree(logs)
        else:
            mask_files(logs)
        what = self._meter.disturbance(end.cpu_seconds + self._own_seconds)
        return Attempt(outcome, error, disturbance=what, peak_rss_bytes=end.peak_rss_bytes)

    def __exit__(self, *_: object) -> None:
        """Leave nothing of them."""
        self._group.close()


class LocalExecutor(Executor):
    """Runs tasks in process groups of this machine. See `executor.Executor`.

    The server starts to import at once, in the background. Ranks that run under another interpreter
    (`engine_python`) have a server of their own, started with the first of them; references never do.
    """

    takes_turns = True

    def __init__(
        self, run_dir: Path | None, base_dir: Path, *, targets: Targets | None = None, cpus: int = 0
    ) -> None:
        """run_dir: None for one that goes with the server. cpus: how many may be used, 0 for all.

        Where they are a part of the cores no rank is pinned: somebody else's may be pinned to the same.
        """
        chosen = targets or executor.DEFAULT_TARGETS
        launcher = Launcher(chosen.modules)
        self.launchers: dict[Path | None, Launcher] = {None: launcher}
        self.run_dir = (run_dir or launcher.scratch / "run").absolute()
        self._cpus = cpus
        self._jobs = JobFactory(self.run_dir, base_dir.absolute(), chosen, partial(resolved, cpus=cpus))
        self._host = None if 0 < cpus < len(os.sched_getaffinity(0)) else this_host()
        self.share: Share | None = None

    def wait_until_ready(self) -> tuple[str, ...]:
        """Return when the server has imported everything: the imports that failed, in words."""
        return self.launchers[None].wait_until_ready().problems

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task once; see `executor.Executor`."""
        with ExitStack() as stack:
            paired = turns.paired_path() if isinstance(task, RepeatTask) else None
            try:
                processes = self._processes(task, stack, watch, takes_turns=paired is not None)
            except ZbenchError as error:
                return Attempt("crashed", Failure("crashed", str(error)))
            processes.advance()
            pair = stack.enter_context(Turns(paired))
            while processes.waits:
                pair.wait() if processes.asks else pair.over()
                processes.advance()
            return self._collected(task, processes)

    def run_heat(self, heat: HeatTask, watch: Callable[[Task], Watch]) -> Iterator[tuple[Task, Attempt]]:
        """Run tasks that take turns; see `executor.Executor`."""
        with ExitStack() as stack:
            contenders: dict[Processes, Task] = {}
            for task in heat.tasks:
                try:
                    processes = self._processes(task, stack, watch(task), takes_turns=True)
                except ZbenchError as error:
                    yield task, Attempt("crashed", Failure("crashed", str(error)))
                else:
                    contenders[processes] = task
            for contender in turns.run_heat(list(contenders), heat.lot):
                task = contenders[contender]
                yield task, replace(self._collected(task, contender), seconds=contender.seconds)

    def _processes(
        self, task: Task, stack: ExitStack, watch: Watch | None, *, takes_turns: bool
    ) -> Processes:
        """Return the processes of a task, not yet started; `stack` ends them and removes their files.

        ZbenchError where no server starts under the task's interpreter.
        """
        launcher, log_name = self._launcher(task), self._jobs.log_name(task)
        scratch = Path(tempfile.mkdtemp(dir=launcher.scratch))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        files = TaskFiles.fresh(scratch / "work", self._jobs.run_dir / log_name)
        seat = stack.enter_context(Seat(scratch / "seat")) if takes_turns else None
        number, nodes, meeting = self.share or (0, 1, f"file://{scratch}/rendezvous")
        job = self._jobs.job(task, files, init_method=meeting, turns=None if seat is None else str(seat.path))
        if nodes > 1 and isinstance(job, RankJob):
            each = job.world_size // nodes
            values = resolved(task.trial, self._cpus, each)
            job = replace(job, trial=values, rank=number * each, local_world_size=each)
        plan = ProcessPlan(
            self._jobs.target(task),
            process_starts(job, files.logs, self._host),
            files,
            log_name=log_name,
            deadline=patience(task),
            watch=watch,
            memory_limit=task.trial.run.memory_limit,
            first=job.rank if isinstance(job, RankJob) else 0,
        )
        return stack.enter_context(Processes(launcher, plan, seat))

    def _collected(self, task: Task, processes: Processes) -> Attempt:
        attempt = replace(processes.attempt(), environment=environment_facts(task.trial, self._jobs.base_dir))
        if self.share is not None and self.share[0] > 0:
            return attempt
        return collected(task, processes.plan.files, attempt, f"{self._jobs.log_name(task)}/rank0.log")

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


def resolved(trial: TrialSpec, cpus: int = 0, here: int | None = None) -> dict[str, Any]:
    """Return the trial as JSON values with its thread count fixed: a pinned rank cannot see all cores.

    here: how many of its ranks run on this machine, if not as many as the trial says.
    """
    run = trial.run.model_copy(update={"threads_per_rank": threads_per_rank(trial, here, cpus)})
    return trial.model_copy(update={"run": run}).model_dump(mode="json")


def process_starts(job: RankJob | ReferenceJob, logs: Path, host: Host | None) -> list[RankStart]:
    """Return how each process of a job starts; `job` is the first rank's here. A reference may use all cores.

    host: None where no rank is pinned.
    """
    if isinstance(job, ReferenceJob):
        return [RankStart(pickle.dumps(job), str(logs / "rank0.log"), (job.result_path, "reference"))]
    # a command starts its ranks by its own launcher
    has_command = job.trial.get("workload", {}).get("command") is not None
    starts = []
    ranks = 1 if has_command else job.local_world_size or job.world_size
    shares: list[tuple[int, ...] | None] = [None] * ranks
    if host is not None and not has_command:
        shares = host.share_out(nodes_of_ranks(job.trial.get("run", {}).get("device", "auto"), ranks))
    for number, cpus in enumerate(shares):
        rank = job.rank + number
        own = replace(job, rank=rank, local_rank=number)
        log, error = str(logs / f"rank{rank}.log"), (job.result_path, rank)
        starts.append(RankStart(pickle.dumps(own), log, error, cpus))
    return starts


def nodes_of_ranks(device: str, ranks: int) -> list[int | None]:
    """Return the NUMA node of each local rank's GPU; None for a rank on the CPU, or where it is not known.

    device: as `run.device`.
    """
    gpus = [] if uses_cpu(device) else visible_gpus()
    nodes = [node_of_device(gpu.address) if gpu.address else None for gpu in gpus] or [None]
    return [nodes[rank % len(nodes)] for rank in range(ranks)]
