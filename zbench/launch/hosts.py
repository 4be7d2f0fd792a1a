"""Trials over several named hosts (`run.hosts`): torchrun on each, which meet by its elastic rendezvous.

The run directory must be on a file system that all hosts share, at the same path, as must be the Python
environment. References and trials of one host run on this machine.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.launch import jobs
from zbench.launch.executor import Attempt, JobFactory, RepeatTask, Task, TaskFiles, collected, patience
from zbench.launch.host_agent import BEAT_SECONDS
from zbench.launch.host_link import HostLink, split_name
from zbench.launch.jobs import Targets
from zbench.launch.local import LocalExecutor
from zbench.launch.outcome import outcome_of
from zbench.launch.progress import ProgressTail, Watch
from zbench.record.record import Failure
from zbench.spec.trial import TrialSpec
from zbench.units import format_seconds
from zbench.worker.job import RankJob, first_failure

_GREETING_SECONDS = 60.0
_IMPORT_SECONDS = 60.0
"""Added to a trial's deadline: torchrun imports torch anew for each trial."""

_PEER_GRACE_SECONDS = 4.0
_POLL_SECONDS = 0.2
_KEPT = ("PYTHONPATH", "OMP_NUM_THREADS", "ZBENCH_TEST_FAULT")


class HostsExecutor:
    """Runs trials of several hosts by an agent on each, all others on this machine. See `Executor`."""

    def __init__(self, run_dir: Path, base_dir: Path, *, targets: Targets | None = None) -> None:
        chosen = targets or jobs.DEFAULT_TARGETS
        values = partial(TrialSpec.model_dump, mode="json")  # a thread count is resolved on its own host
        self._jobs = JobFactory(run_dir.absolute(), base_dir.absolute(), chosen, values)
        self._local = LocalExecutor(run_dir, base_dir, targets=targets)

    def wait_until_ready(self) -> tuple[str, ...]:
        """Return when this machine's tasks can start."""
        return self._local.wait_until_ready()

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task once; see `executor.Executor`."""
        if isinstance(task, RepeatTask) and isinstance(task.trial.run.hosts, list):
            return self._spread(task, task.trial.run.hosts, watch)
        return self._local.run(task, watch)

    def close(self) -> None:
        """End what runs on this machine; agents end with their tasks."""
        self._local.close()

    def _spread(self, task: RepeatTask, hosts: Sequence[str], watch: Watch | None) -> Attempt:
        if task.trial.workload.command is not None or task.trial.engine.engine_python is not None:
            raise UsageError(
                "run.hosts: workload.command and engine.engine_python start their ranks on this machine;"
                " leave run.hosts out"
            )
        log = self._jobs.log_name(task)
        directory = self._jobs.run_dir / log
        files = TaskFiles.fresh(directory, directory)
        job = self._jobs.job(task, files, watched=True)
        assert isinstance(job, RankJob)
        order = {"target": self._jobs.target(task), "modules": self._jobs.targets.modules, "job": asdict(job)}
        (directory / "job.json").write_text(json.dumps(order))
        with ExitStack() as stack:
            links: list[HostLink] = []
            for number, entry in enumerate(hosts):
                errors = directory / f"host{number}.err"
                link = HostLink(split_name(entry)[0], task.trial.run.host_command, errors)
                stack.callback(link.close)
                links.append(link)
            failure = _greeted(links, log)
            if failure is None:
                self._order(task, links, directory)
                failure = _watched(task, links, files, watch, log)
        if failure is not None:
            return Attempt(outcome_of(failure), failure)
        return collected(task, files, Attempt("ok"), f"{log}/host0.log")

    def _order(self, task: RepeatTask, links: Sequence[HostLink], directory: Path) -> None:
        """Tell every agent what to run."""
        run = task.trial.run
        assert isinstance(run.hosts, list)
        address = split_name(run.hosts[0])[1]
        each = run.world_size // len(links)
        for number, link in enumerate(links):
            torchrun = ["--nnodes", str(len(links)), "--nproc-per-node", str(each), "--max-restarts", "0"]
            torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{links[0].port}"]
            torchrun += ["--rdzv-id", directory.name, "--rdzv-conf", f"is_host={int(number == 0)}"]
            order: dict[str, Any] = {
                "torchrun": torchrun,
                "worker": ["-m", "zbench.launch.host_rank", str(directory / "job.json")],
                "meet": address,
                "log": str(directory / f"host{number}.log"),
                "directory": str(Path.cwd()),
                "environment": {key: os.environ[key] for key in _KEPT if key in os.environ},
            }
            order["environment"].setdefault(
                "OMP_NUM_THREADS", "1"
            )  # torchrun's own default, without its note
            link.send(order)


def _greeted(links: Sequence[HostLink], log: str) -> Failure | None:
    """Wait until every agent has answered; return what is wrong with one that does not."""
    deadline = time.monotonic() + _GREETING_SECONDS
    while any(link.port is None for link in links):
        for number, link in enumerate(links):
            reason = link.lost
            if link.port is None and time.monotonic() > deadline:
                reason = f"it did not answer within {_GREETING_SECONDS:.0f} s"
            if reason is not None:
                message = f"host {link.name} cannot be used: {reason}; see run.hosts and run.host_command"
                return Failure("crashed", message, f"{log}/host{number}.err")
        time.sleep(_POLL_SECONDS)
    return None


def _watched(
    task: RepeatTask, links: Sequence[HostLink], files: TaskFiles, watch: Watch | None, log: str
) -> Failure | None:
    """Wait until all hosts have ended; return why the trial failed, None where it did not."""
    tail = ProgressTail(files.progress)
    deadline = give_up = time.monotonic() + patience(task) + _IMPORT_SECONDS
    beaten = 0.0
    while not all(link.code == 0 for link in links):
        now = time.monotonic()
        if now - beaten > BEAT_SECONDS / 2:
            beaten = now
            for link in links:
                link.send()
        if watch is not None and (reason := tail.feed(watch)):
            return Failure("pruned", reason, f"{log}/host0.log")
        if any(link.lost or link.code for link in links):
            give_up = min(give_up, now + _PEER_GRACE_SECONDS)  # the others may know more of the cause
        if now > give_up:
            return _cause(task, links, files, log, timed_out=give_up == deadline)
        time.sleep(_POLL_SECONDS)
    if watch is not None:
        tail.feed(watch)
    return None


def _cause(
    task: RepeatTask, links: Sequence[HostLink], files: TaskFiles, log: str, *, timed_out: bool
) -> Failure:
    """Return why a trial failed: a host that was lost, what a rank said, or the deadline."""
    for number, link in enumerate(links):
        if (reason := link.lost) is not None:
            message = f"host {link.name} was lost in mid-trial: {reason}"
            return Failure("crashed", message, f"{log}/host{number}.log")
    failure = first_failure(str(files.result), task.trial.run.world_size)
    if failure is not None:
        return Failure(failure.kind, failure.message, f"{log}/host0.log")
    if timed_out:
        limit = format_seconds(task.trial.run.timeout)
        return Failure("timeout", f"not finished after {limit} (run.timeout)", f"{log}/host0.log")
    number, link = next((number, link) for number, link in enumerate(links) if link.code)
    message = f"host {link.name}: torchrun ended with status {link.code}"
    return Failure("crashed", message, f"{log}/host{number}.log")
