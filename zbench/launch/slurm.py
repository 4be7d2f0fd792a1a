"""The SLURM executor: each repeat is a job of one SLURM task per rank, submitted by submitit.

An optional extra (`pip install "zbench[slurm]"`). The run directory must be on a file system that all nodes
share. The ranks connect to a TCP port of the job's first node.
"""

import contextlib
import importlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from zbench.errors import UsageError
from zbench.launch import jobs
from zbench.launch.child import call
from zbench.launch.executor import (
    Attempt,
    JobFactory,
    ReferenceTask,
    RepeatTask,
    Task,
    TaskFiles,
    collected,
    patience,
)
from zbench.launch.jobs import Targets
from zbench.launch.progress import ProgressTail, Watch
from zbench.record.record import Failure, Outcome
from zbench.spec.trial import TrialSpec
from zbench.units import parse_count
from zbench.worker.job import RankJob, ReferenceJob, first_failure

_POLL_SECONDS = 1.0
_CANCEL_SECONDS = 60.0
_QUEUE_SECONDS = 7 * 24 * 3600.0
_STATES: dict[str, Outcome] = {"OUT_OF_MEMORY": "oom", "TIMEOUT": "timeout", "DEADLINE": "timeout"}
_KNOWN = ("nodes", "cluster", "timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Where and how jobs run. nodes: of one trial; `parameters`: further ones of submitit, as
    slurm_partition.

    cluster: `slurm`, or submitit's `local` (processes on this machine) to try a set-up without SLURM.
    """

    nodes: int = 1
    cluster: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Read `nodes=2 partition=gpu account=x` as options; UsageError for what is none."""
        found: dict[str, Any] = {}
        for text in texts:
            key, sign, value = text.partition("=")
            if not sign or not key.strip() or not value.strip():
                raise UsageError(
                    f"--slurm: expected KEY=VALUE such as nodes=2 or partition=gpu, got {text!r}"
                )
            name = key.strip() if key.strip() in _KNOWN else f"slurm_{key.strip()}"
            found[name] = value.strip()
        nodes, cluster = _whole(found.pop("nodes", "1"), "nodes"), str(found.pop("cluster", "slurm"))
        numbers = {name: _whole(found[name], name) for name in _KNOWN if name in found}
        return cls(nodes, cluster, found | numbers)


class SlurmExecutor:
    """Runs tasks as jobs, one after another. See `executor.Executor`."""

    def __init__(
        self, run_dir: Path, base_dir: Path, options: SlurmOptions, *, targets: Targets | None = None
    ) -> None:
        """Raise UsageError where submitit is not installed, or there is no SLURM to submit to."""
        chosen = targets or jobs.DEFAULT_TARGETS
        self._jobs = JobFactory(run_dir.absolute(), base_dir.absolute(), chosen, _as_it_is)
        self._options = options
        self._submitit = require_slurm(options)

    def wait_until_ready(self) -> tuple[str, ...]:
        """Nothing is imported here: each job imports on its own node."""
        return ()

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task as a job; UsageError where the ranks cannot be divided evenly among the nodes."""
        if task.trial.workload.command is not None:
            raise UsageError("workload.command: a command starts its own ranks; submit it by its own script")
        if task.trial.engine.engine_python is not None:
            raise UsageError(
                "engine.engine_python: jobs run under the environment that submits them; leave it out,"
                " or start `zbench sweep --slurm` from that environment"
            )
        name = self._jobs.log_name(task)
        per_node = ranks_per_node(task.trial.run.world_size, self._options.nodes)
        shape = {"tasks_per_node": per_node}
        if isinstance(task, ReferenceTask):
            shape = {"tasks_per_node": 1, "nodes": 1}
        directory = self._jobs.run_dir / name
        files = TaskFiles.fresh(directory, directory)
        job = self._jobs.job(task, files, watched=watch is not None)
        submitted = self._submit(task, job, files, shape)
        try:
            reason = _wait(submitted, watch, files.progress)
        except BaseException:
            submitted.cancel(check=False)
            raise
        if reason is not None:
            _end(submitted)
            return Attempt("timeout", Failure("pruned", reason, name))
        reported = _reported(task, files, name)
        if reported is not None:
            return reported
        ended = collected(task, files, Attempt("ok"), name)
        return ended if ended.error is None else _named_by_slurm(ended, submitted)

    def close(self) -> None:
        """Nothing is left to end: every job was waited for or cancelled."""

    def _submit(
        self, task: Task, job: RankJob | ReferenceJob, files: TaskFiles, shape: dict[str, int]
    ) -> Any:
        executor = self._submitit.AutoExecutor(folder=str(files.logs), cluster=self._options.cluster)
        minutes = max(
            1, round(patience(task) / 60 + 2)
        )  # importing torch on cold nodes is not the trial's time
        settings = {"nodes": self._options.nodes, "timeout_min": minutes, "name": "zbench", **shape}
        executor.update_parameters(**{**settings, **self._options.parameters})
        return executor.submit(run_job, self._jobs.target(task), self._jobs.targets.modules, job)


def require_slurm(options: SlurmOptions) -> Any:
    """Return the submitit module; UsageError where it is not installed or there is no SLURM here."""
    module = _submitit()
    if options.cluster == "slurm" and shutil.which("sbatch") is None:
        raise UsageError("no sbatch on this machine; run this on a login node of the cluster")
    return module


def ranks_per_node(world_size: int, nodes: int) -> int:
    """Return how many ranks run on each node; UsageError where they cannot be divided evenly."""
    each, rest = divmod(world_size, nodes)
    if rest or each == 0:
        raise UsageError(f"{world_size} ranks cannot be shared out evenly among {nodes} nodes")
    return each


def run_job(target: str, modules: Sequence[str], job: RankJob | ReferenceJob) -> None:
    """Be one process of a job: import what the worker needs, then call it.

    A rank reads its place and the rendezvous from the job's environment.
    """
    for module in modules:  # in this order: the memory counter must be there before torch
        importlib.import_module(module)
    if isinstance(job, RankJob):
        job = _placed(job)
        call(target, lambda: job, (job.result_path, job.rank))
    else:
        call(target, lambda: job, (job.error_stem, "reference"))


def _placed(job: RankJob) -> RankJob:
    """Return the job of this process: its rank, and a TCP port of the job's first node to meet at."""
    place = _submitit().JobEnvironment()
    port = 20_000 + int("".join(filter(str.isdigit, str(place.job_id)))) % 20_000
    return replace(
        job,
        rank=place.global_rank,
        world_size=place.num_tasks,
        init_method=f"tcp://{place.hostnames[0] if place.num_nodes > 1 else '127.0.0.1'}:{port}",
        local_rank=place.local_rank,
        local_world_size=max(1, place.num_tasks // max(1, place.num_nodes)),
    )


def _reported(task: Task, files: TaskFiles, name: str) -> Attempt | None:
    """Return the failure that the ranks reported, or None."""
    world_size = task.trial.run.world_size if isinstance(task, RepeatTask) else 0
    failure = first_failure(str(files.result), world_size)
    if failure is None:
        return None
    return Attempt("oom" if failure.kind == "oom" else "crashed", replace(failure, log=name))


def _named_by_slurm(attempt: Attempt, submitted: Any) -> Attempt:
    """Return the attempt of a job that left neither result nor error, by the state that SLURM reports."""
    assert attempt.error is not None
    state = str(submitted.state).split()[0].rstrip("+")
    outcome = _STATES.get(state, "crashed")
    message = f"the job {submitted.job_id} ended as {state}"
    return replace(attempt, outcome=outcome, error=replace(attempt.error, kind=outcome, message=message))


def _wait(submitted: Any, watch: Watch | None, progress: Path) -> str | None:
    """Wait for a job's end; return the reason that `watch` gave to end it early."""
    tail = ProgressTail(progress)
    deadline = time.monotonic() + _QUEUE_SECONDS
    while not submitted.done() and time.monotonic() < deadline:
        reason = tail.feed(watch) if watch is not None else None
        if reason is not None:
            return reason
        time.sleep(_POLL_SECONDS if submitted.state in ("PENDING", "RUNNING") else _POLL_SECONDS / 4)
    with contextlib.suppress(Exception):
        submitted.wait()
    if watch is not None:
        tail.feed(watch)
    return None


def _end(submitted: Any) -> None:
    """Cancel a job and wait until it has ended: one that still runs would write to its successor's files."""
    submitted.cancel(check=False)
    deadline = time.monotonic() + _CANCEL_SECONDS
    while not submitted.done() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS / 4)


def _as_it_is(trial: TrialSpec) -> dict[str, Any]:
    """Return the trial's JSON values: its thread count depends on the node and is resolved there."""
    return trial.model_dump(mode="json")


def _whole(text: str, name: str) -> int:
    try:
        number = parse_count(text)
    except ValueError as error:
        raise UsageError(f"--slurm {name}: {error}") from None
    if number < 1:
        raise UsageError(f"--slurm {name}: expected at least 1, got {text}")
    return number


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise UsageError('SLURM jobs need submitit; run: pip install "zbench[slurm]"') from None
