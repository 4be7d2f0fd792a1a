"""The executor of this machine: processes forked from a trial server, watched until none of them is left."""

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from zbench.errors import ZbenchError
from zbench.gpus import visible_gpus
from zbench.job.jobs import RankJob, ReferenceJob, threads_per_rank
from zbench.job.messages import RankStart
from zbench.job.progress import Watch
from zbench.job.turns import Turns
from zbench.launch import executor, turns
from zbench.launch.executor import (
    Attempt,
    JobFactory,
    RepeatTask,
    SampleTask,
    Targets,
    Task,
    TaskFiles,
    TrialTask,
    collected,
    deadline_of,
)
from zbench.launch.process.heats import HeatExecutor
from zbench.launch.process.processes import Launcher, Processes, ProcessPlan
from zbench.launch.room import uses_cpu
from zbench.launch.turns import TurnGate
from zbench.masking import learn, masked
from zbench.spec.environments import Environment, executable
from zbench.spec.peers import elsewhere
from zbench.spec.run import slow_update, updates_on_gpu
from zbench.spec.trial import TrialSpec
from zbench.topology import Host, node_of_device, pinning_refusal, this_host

_COMPILING_SECONDS = 60.0
_MESSAGES = ("warnings", "error")
"""Fields of a result that hold texts of the model and the engine."""


class NodeRanks(NamedTuple):
    """One node's part of ranks that span `nodes`. init_method: the URL where all ranks meet."""

    node_rank: int
    nodes: int
    init_method: str


class LocalExecutor(HeatExecutor[Processes]):
    """Runs tasks in process groups of this machine. See `executor.Executor`.

    The server starts to import at once, in the background. Ranks that run under another interpreter
    (`engine_python`) have a server of their own, started with the first of them; references never do.
    """

    def __init__(
        self,
        run_dir: Path | None,
        base_dir: Path,
        *,
        targets: Targets | None = None,
        cpus: int = 0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """run_dir: None for one that goes with the server. cpus: how many may be used, 0 for all.

        tell: told which of the server's imports failed, and that updates on GPUs will be slower, and why.
        With fewer `cpus` than this machine's cores no rank is pinned: another launcher's may be pinned there.
        """
        super().__init__()
        chosen = targets or executor.DEFAULT_TARGETS
        launcher = Launcher(chosen.modules, tell=tell)
        self.launchers: dict[Path | None, Launcher] = {None: launcher}
        self.run_dir = (run_dir or launcher.scratch / "run").absolute()
        self._cpus, self._tell, self._knows_kernels = cpus, tell, False
        self._jobs = JobFactory(self.run_dir, base_dir.absolute(), chosen, partial(resolved, cpus=cpus))
        cores = os.sched_getaffinity(0)
        self._host = None if 0 < cpus < len(cores) else this_host()
        if self._host is not None and (refusal := pinning_refusal(cores)) is not None:
            tell(f"ranks are not pinned to cores of their own, so times vary more: {refusal}")
        self.node_ranks: NodeRanks | None = None

    def participant(self, task: Task, stack: ExitStack, watch: Watch, *, among: int) -> Processes:
        """Return the processes of a task; see `HeatExecutor`. One alone may take turns with another sweep's.

        ZbenchError where no server starts under the task's interpreter.
        """
        assert not isinstance(task, SampleTask), "it runs trials"
        learn(task.trial.config())
        if isinstance(task, RepeatTask) and not self._knows_kernels:
            self._ask_for_kernels(task.trial)
        paired = turns.paired_path() if isinstance(task, RepeatTask) and among == 1 else None
        launcher = self._launcher(task)
        log_name = self._jobs.log_name(task)
        scratch = Path(tempfile.mkdtemp(dir=launcher.scratch))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        files = TaskFiles.fresh(scratch / "work", self._jobs.run_dir / log_name)
        gate = stack.enter_context(TurnGate(scratch / "gate")) if among > 1 or paired is not None else None
        node_rank, nodes, meeting = self.node_ranks or NodeRanks(0, 1, f"file://{scratch}/rendezvous")
        job = self._jobs.job(task, files, init_method=meeting, turns=None if gate is None else str(gate.path))
        if nodes > 1 and isinstance(job, RankJob):
            each = job.world_size // nodes
            values = resolved(task.trial, self._cpus, each)
            job = replace(job, trial=values, rank=node_rank * each, local_world_size=each)
        plan = ProcessPlan(
            self._jobs.target(task),
            process_starts(job, files.logs, self._host),
            files,
            log_name=log_name,
            deadline=deadline_of(task),
            watch=watch,
            memory_limit=task.trial.run.memory_limit,
            first=job.rank if isinstance(job, RankJob) else 0,
        )
        pair = None if paired is None else stack.enter_context(Turns(paired))
        return stack.enter_context(Processes(launcher, plan, gate, pair))

    def attempt(self, task: Task, participant: Processes) -> Attempt:
        """Return how a task ended, with its result."""
        assert not isinstance(task, SampleTask), "it runs trials"
        facts = environment_facts(task.trial, self._jobs.base_dir)
        attempt = replace(participant.attempt(), environment=facts, seconds=participant.seconds)
        if self.node_ranks is not None and self.node_ranks.node_rank > 0:
            return _masked(attempt)
        log = f"{self._jobs.log_name(task)}/rank0.log"
        return _masked(collected(task, participant.plan.files, attempt, log))

    def close(self) -> None:
        """End the servers; nothing that was started is left."""
        super().close()
        for launcher in self.launchers.values():
            launcher.close()

    def _ask_for_kernels(self, trial: TrialSpec) -> None:
        """Before the first trial that updates on GPUs, tell if zbench's kernels cannot; a process of its own
        compiles one. Where it fails, the trial says why.
        """
        if not updates_on_gpu(trial.engine) or uses_cpu(trial.run.device) or not visible_gpus():
            return
        self._knows_kernels = True
        with suppress(ZbenchError):
            target = "zbench.worker.facts:kernels"
            if reason := call(self.launchers[None], target, {}, 1, patience=_COMPILING_SECONDS):
                self._tell(slow_update(reason))

    def _launcher(self, task: TrialTask) -> Launcher:
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


def _masked(attempt: Attempt) -> Attempt:
    """Return an attempt without the secrets in its messages, which are shown before they are stored."""
    error = attempt.error and replace(attempt.error, message=masked(attempt.error.message))
    messages = {key: masked(value) for key, value in (attempt.result or {}).items() if key in _MESSAGES}
    return replace(attempt, error=error, result=attempt.result and attempt.result | messages)


def call(
    launcher: Launcher,
    target: str,
    trial: dict[str, Any],
    world_size: int,
    base_dir: str = "",
    *,
    patience: float,
) -> Any:
    """Return the JSON that `target` (`module:function`, given a RankJob) writes on rank 0.

    ZbenchError, with the ranks' reason, where they fail or take longer than `patience` seconds.
    """
    scratch = Path(tempfile.mkdtemp(dir=launcher.scratch))
    files = TaskFiles.fresh(scratch / "work", scratch / "logs")
    job = RankJob(
        trial, 0, world_size, f"file://{scratch}/meeting", "", base_dir, result_path=str(files.result)
    )
    starts = process_starts(job, files.logs, this_host())
    plan = ProcessPlan(target, starts, files, log_name="logs", deadline=patience)
    with Processes(launcher, plan) as processes:
        processes.advance()
        attempt = processes.attempt()
    if attempt.error is not None:
        raise ZbenchError(attempt.error.message)
    return json.loads(files.result.read_text())


def call_on_new_server(target: str, trial: TrialSpec, base_dir: Path, *, patience: float) -> Any:
    """Start a trial server, and `call` once on as many ranks as a trial has."""
    with Launcher() as launcher:
        ranks = trial.run.world_size
        return call(launcher, target, resolved(trial), ranks, str(base_dir), patience=patience)


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
    ranks = 1 if has_command else job.ranks_here
    shares: list[tuple[int, ...] | None] = [None] * ranks
    if host is not None and not has_command:
        shares = host.share_out(nodes_of_ranks(job.trial.get("run", {}).get("device", "auto"), ranks))
    for number, cpus in enumerate(shares):
        rank = job.rank + number
        rank_job = replace(job, rank=rank, local_rank=number)
        log = str(logs / f"rank{rank}.log")
        error = (job.result_path, rank)
        starts.append(RankStart(pickle.dumps(rank_job), log, error, cpus))
    return starts


def nodes_of_ranks(device: str, ranks: int) -> list[int | None]:
    """Return the NUMA node of each local rank's GPU; None for a rank on the CPU, or where it is not known.

    device: as `run.device`.
    """
    gpus = [] if uses_cpu(device) else visible_gpus()
    nodes = [node_of_device(gpu.address) if gpu.address else None for gpu in gpus] or [None]
    return [nodes[rank % len(nodes)] for rank in range(ranks)]
