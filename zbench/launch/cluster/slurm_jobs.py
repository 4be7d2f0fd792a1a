"""Jobs on a cluster: submitted by submitit, several as one array; their states as SLURM reports them.

submitit calls `sacct`, which needs SLURM's accounting database, and treats a job as done when its processes
have written results. This module calls `squeue`, which every SLURM has, and relies on its answer alone: a
requeued job is not done, even if its first start wrote results.
"""

import getpass
import importlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from zbench.errors import UsageError
from zbench.launch.cluster.node import ranks_per_node
from zbench.spec.run import RANKS_ON_A_CPU
from zbench.spec.trial import TrialSpec

_KNOWN = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")

LARGEST_ARRAY = 500
"""Tasks of one job array: SLURM's own default limit is 1001 (MaxArraySize)."""

_ASK_SECONDS = 2.0
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_UNDER_WAY = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
)
GONE = "UNKNOWN"
"""The state of a job that SLURM has forgotten."""


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Where and how jobs run. nodes: of one trial; `parameters`: further ones of submitit, as
    slurm_partition.

    cluster: `slurm`, or submitit's `local` (processes on this machine) to try a set-up without SLURM.
    A job has its nodes to itself unless `exclusive=no` is given: other jobs would slow it down.
    """

    nodes: int = 1
    cluster: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"slurm_exclusive": True})

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Parse options such as `nodes=2 partition=gpu account=x`; UsageError for an invalid one."""
        options = {"exclusive": "yes"}
        for text in texts:
            key, sign, value = text.partition("=")
            if not sign or not key.strip() or not value.strip():
                raise UsageError(
                    f"--slurm: expected KEY=VALUE such as nodes=2 or partition=gpu, got {text!r}"
                )
            options[key.strip().removeprefix("slurm_")] = value.strip()
        nodes = _nodes(options.pop("nodes", "1"))
        cluster = options.pop("cluster", "slurm")
        settings = {key if key in _KNOWN else f"slurm_{key}": _value(text) for key, text in options.items()}
        if settings["slurm_exclusive"] is False:
            del settings["slurm_exclusive"]
        return cls(nodes, cluster, settings)

    def auto_ranks(self, nodes: int, device: str) -> int:
        """Return the ranks of `world_size: auto`: one for each GPU that a node of a job is given."""
        gpus = self.parameters.get("gpus_per_node") or self.parameters.get("slurm_gres", 0)
        gpus = os.environ.get("SLURM_GPUS_ON_NODE", 0) if is_in_allocation() else gpus
        count = str(gpus).rpartition(":")[2]
        each = int(count) if device != "cpu" and count.isdecimal() else 0
        return (each or RANKS_ON_A_CPU) * (nodes if nodes > 1 else self.nodes)

    def nodes_for(self, trial: TrialSpec) -> tuple[int, int]:
        """Return nodes and ranks per node of a trial; UsageError where it cannot be a job.

        `run.nodes` says how many nodes; `nodes` counts for trials that leave it at 1.
        """
        nodes = trial.run.nodes if trial.run.nodes > 1 else self.nodes
        return nodes, ranks_per_node(trial, nodes)


def is_in_allocation() -> bool:
    """Whether this process runs within an allocation of SLURM."""
    return "SLURM_JOB_ID" in os.environ


class Cluster:
    """Submits calls as jobs, and knows their states: one call of `squeue` for all, at most every two seconds.

    While SLURM does not answer (its controller restarts) the last known states stay. name: that of every job;
    folder: where submitit keeps its files.
    """

    def __init__(self, options: SlurmOptions, name: str, folder: Path) -> None:
        """Cancel the jobs that an earlier process of the same name left behind.

        UsageError where submitit is not installed, there is no SLURM here, or an option is unknown.
        """
        self._options, self._name, self._folder = options, name, folder
        self._submitit = require_slurm(options)
        self.is_slurm = options.cluster == "slurm"
        self._states: dict[str, str] = {}
        self._next_question = 0.0
        if self.is_slurm and folder.exists():
            _output("scancel", f"--name={name}", f"--user={getpass.getuser()}")

    def submit(self, calls: Sequence[Callable[[], None]], settings: dict[str, Any]) -> list[Any]:
        """Submit calls that need the same resources, as one job array; UsageError where SLURM refuses."""
        executor = self._submitit.AutoExecutor(folder=str(self._folder), cluster=self._options.cluster)
        _update(executor, {**settings, "name": self._name})
        jobs: list[Any] = []
        try:
            for first in range(0, len(calls), LARGEST_ARRAY):
                with executor.batch():
                    array = [executor.submit(call) for call in calls[first : first + LARGEST_ARRAY]]
                jobs += array
        except Exception as error:
            self.cancel(jobs)
            text = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"SLURM refused the job: {text}; see the --slurm options") from None
        self._states |= {job.job_id: "PENDING" for job in jobs}
        return jobs

    def cancel(self, jobs: Sequence[Any], *, only_waiting: bool = False) -> None:
        """Cancel jobs, running ones too unless `only_waiting`."""
        if not self.is_slurm:
            for job in jobs if not only_waiting else ():
                job.cancel(check=False)
            return
        if jobs:  # without a number scancel would end others
            _output("scancel", *["--state=PENDING"] * only_waiting, *(job.job_id for job in jobs))
        self._next_question = 0.0

    def state(self, job: Any) -> str:
        """Return SLURM's name of a job's state; `GONE` for a job that SLURM no longer lists."""
        if not self.is_slurm:
            return str(job.state) if job.done() else "RUNNING"
        if time.monotonic() >= self._next_question:
            self._ask()
        return self._states[job.job_id]

    def _ask(self) -> None:
        user = f"--user={getpass.getuser()}"
        answer = _output("squeue", "--noheader", "--array", "--states=all", user, "--format=%i|%T")
        self._next_question = time.monotonic() + _ASK_SECONDS
        if answer is None:
            return
        states = dict(line.strip().split("|", 1) for line in answer.splitlines() if "|" in line)
        for job_id, state in self._states.items():
            states.setdefault(job_id, GONE if is_open(state) else state)
        self._states = states


def is_open(state: str) -> bool:
    """Whether a job of this state waits or runs."""
    return state in _WAITING or state in _UNDER_WAY


def is_waiting(state: str) -> bool:
    """Whether a job of this state has not begun, or waits to begin again."""
    return state in _WAITING


def require_slurm(options: SlurmOptions) -> Any:
    """Return the submitit module.

    UsageError where it is not installed, there is no SLURM here, or it does not know an option.
    """
    try:
        module = importlib.import_module("submitit")
    except ImportError:
        raise UsageError('SLURM jobs need submitit; run: pip install "zbench[slurm]"') from None
    for name in ("sbatch", "srun") if options.cluster == "slurm" else ():
        if shutil.which(name) is None:
            raise UsageError(f"no {name} on this machine; run this on a login node of the cluster")
    trial = module.AutoExecutor(folder=tempfile.gettempdir(), cluster=options.cluster)
    _update(trial, dict(options.parameters))
    return module


def _update(executor: Any, settings: dict[str, Any]) -> None:
    """Set parameters of a submitit executor; UsageError for unknown ones."""
    try:
        executor.update_parameters(**settings)
    except (NameError, ValueError, TypeError) as error:
        text = str(error).splitlines()[0].replace("slurm_", "")
        raise UsageError(f"--slurm: {text}") from None


def _output(*words: str) -> str | None:
    """Return what one of SLURM's commands prints, None where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _value(text: str) -> str | bool | int:
    if text.isdecimal():
        return int(text)
    return {"yes": True, "true": True, "no": False, "false": False}.get(text.lower(), text)


def _nodes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--slurm nodes: expected a whole number of at least 1, got {text}")
    return int(text)
