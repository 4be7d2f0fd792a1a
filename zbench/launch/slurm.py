"""Trials that span nodes: each repeat is a SLURM job of one task a rank, submitted by submitit.

An optional extra (`pip install "zbench[slurm]"`). The run directory must lie on a file system that all nodes
share. The ranks meet at a TCP port of the job's first node. What a rank leaves (result, error files) is read
as the local launcher reads it, so a Record looks the same wherever its trial ran.
"""

import contextlib
import importlib
import json
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from zbench.errors import UsageError
from zbench.launch import trial as local
from zbench.launch.child import is_out_of_memory, resolve
from zbench.launch.progress import ProgressTail, Watch
from zbench.launch.trial import Targets
from zbench.record import lines
from zbench.record.record import SCHEMA_VERSION, Failure, Outcome, Record
from zbench.record.store import LOGS
from zbench.spec.trial import TrialSpec
from zbench.units import parse_count
from zbench.worker.job import RankJob, ReferenceJob, error_path, first_failure, reference_key, write_error

_POLL_SECONDS = 1.0
_REFERENCE_PATIENCE = 4.0
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


class SlurmRunner:
    """Runs trials as jobs, one after another. Has the methods of `zbench.launch.trial.TrialRunner`."""

    def __init__(
        self, run_dir: Path, base_dir: Path, options: SlurmOptions, *, targets: Targets | None = None
    ) -> None:
        """Raise UsageError where submitit is not installed, or there is no SLURM to submit to."""
        self.run_dir, self.base_dir = run_dir.absolute(), base_dir.absolute()
        self._options, self._targets = options, targets or local.DEFAULT_TARGETS
        self._submitit = _submitit()
        if options.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError("no sbatch on this machine; run this on a login node of the cluster")
        self._references: dict[str, Path | Failure] = {}

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        """Run one repeat as a job and return its Record, whatever became of it.

        watch: as in TrialRunner. UsageError where the ranks cannot be shared out evenly among the nodes.
        """
        per_node, rest = divmod(trial.run.world_size, self._options.nodes)
        if rest or per_node == 0:
            raise UsageError(
                f"{trial.run.world_size} ranks cannot be shared out evenly among {self._options.nodes} nodes"
            )
        reference = self.reference(trial)
        name = f"{LOGS}/{trial.trial_id}-r{repeat}"
        work = _emptied(self.run_dir / name)
        job = RankJob(
            trial=trial.model_dump(mode="json"),
            rank=0,
            world_size=trial.run.world_size,
            init_method="",
            run_dir=str(self.run_dir),
            base_dir=str(self.base_dir),
            result_path=str(work / "result.json"),
            reference_path=str(reference) if isinstance(reference, Path) else None,
            progress_path=str(work / "progress.jsonl") if watch else None,
            repeat=repeat,
        )
        end = self._submit(
            run_task, job, work, tasks_per_node=per_node, seconds=trial.run.timeout, watch=watch
        )
        warnings = [f"not verified: {reference.message}"] if isinstance(reference, Failure) else []
        return self._record(trial, repeat, end, Path(job.result_path), warnings)

    def has_reference(self, trial: TrialSpec) -> bool:
        """Whether `run` would submit its job at once."""
        return trial.verify.mode == "off" or reference_key(trial) in self._references

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Return the trajectory that a trial is judged by, computed by a job of its own if missing."""
        if trial.verify.mode == "off":
            return None
        key = reference_key(trial)
        if key not in self._references:
            self._references[key] = self._make_reference(trial, key, watch)
        return self._references[key]

    def wait_until_ready(self) -> tuple[str, ...]:
        """Nothing is imported here: each job imports on its own node."""
        return ()

    def close(self) -> None:
        """Nothing is left to end: every job was waited for or cancelled."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_reference(self, trial: TrialSpec, key: str, watch: Watch | None) -> Path | Failure:
        path = self.run_dir / "references" / f"{key}.pt"
        if path.exists():
            return path
        path.parent.mkdir(exist_ok=True)
        work = _emptied(self.run_dir / LOGS / f"reference-{key}")
        progress = str(work / "progress.jsonl") if watch else None
        values = trial.model_dump(mode="json")
        job = ReferenceJob(values, str(self.run_dir), str(self.base_dir), str(path), progress)
        seconds = trial.run.timeout * _REFERENCE_PATIENCE * trial.run.world_size
        end = self._submit(
            run_reference_task, job, work, tasks_per_node=1, seconds=seconds, watch=watch, nodes=1
        )
        if end is None and not path.exists():
            return Failure("crashed", "its job ended without a result", str(work.relative_to(self.run_dir)))
        return end or path

    def _submit(
        self, task: Any, job: Any, work: Path, *, seconds: float, watch: Watch | None, **shape: int
    ) -> Failure | None:
        """Submit a job, wait for its end, and return why it failed, or None."""
        executor = self._submitit.AutoExecutor(folder=str(work), cluster=self._options.cluster)
        minutes = max(1, round(seconds / 60 + 2))  # importing torch on cold nodes is not the trial's time
        settings = {"nodes": self._options.nodes, "timeout_min": minutes, "name": "zbench", **shape}
        executor.update_parameters(**{**settings, **self._options.parameters})
        submitted = executor.submit(task, job, self._targets)
        try:
            reason = _waited(submitted, watch, work / "progress.jsonl")
        except BaseException:
            submitted.cancel(check=False)
            raise
        if reason is not None:
            submitted.cancel(check=False)
            return Failure("pruned", reason)
        return self._failure(job, submitted)

    def _failure(self, job: Any, submitted: Any) -> Failure | None:
        result = job.result_path if isinstance(job, RankJob) else job.reference_path
        failure = first_failure(result, job.world_size if isinstance(job, RankJob) else 0)
        if failure is not None or Path(result).exists():
            return failure
        state = str(submitted.state).split()[0].rstrip("+")
        return Failure(_STATES.get(state, "crashed"), f"the job {submitted.job_id} ended as {state}")

    def _record(
        self, trial: TrialSpec, repeat: int, failure: Failure | None, result: Path, warnings: list[str]
    ) -> Record:
        known: dict[str, Any]
        if failure is None:
            known = json.loads(result.read_text())
        else:
            known = {
                "outcome": _outcome(failure.kind),
                "error": replace(failure, log=f"{LOGS}/{result.parent.name}"),
            }
        identity = {"run_id": self.run_dir.name, "trial_id": trial.trial_id, "repeat": repeat}
        what = {"axes": trial.axes, "config": trial.config(), "schema_version": SCHEMA_VERSION}
        record = lines.decode(identity | what | known, "the result of a trial")
        return replace(record, warnings=[*record.warnings, *warnings])


def run_task(job: RankJob, targets: Targets) -> None:
    """Be one rank: take place and rendezvous from the job's environment, then call the worker."""
    place = _submitit().JobEnvironment()
    port = 20_000 + int("".join(filter(str.isdigit, str(place.job_id)))) % 20_000
    mine = replace(
        job,
        rank=place.global_rank,
        world_size=place.num_tasks,
        init_method=f"tcp://{place.hostnames[0] if place.num_nodes > 1 else '127.0.0.1'}:{port}",
        local_rank=place.local_rank,
        local_world_size=max(1, place.num_tasks // max(1, place.num_nodes)),
    )
    _call(targets.rank, targets.modules, mine, (mine.result_path, mine.rank))


def run_reference_task(job: ReferenceJob, targets: Targets) -> None:
    """Compute a reference trajectory."""
    _call(targets.reference, targets.modules, job, (job.reference_path, "reference"))


def _call(target: str, modules: Sequence[str], job: Any, place: tuple[str, int | str]) -> None:
    """Call a worker's function; `place` is where the launcher looks for the error of whom."""
    for module in modules:  # in this order: the memory counter must be there before torch
        importlib.import_module(module)
    try:
        resolve(target)(job)
    except SystemExit:
        return  # it has left its error file
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        if not error_path(*place).exists():
            kind = "oom" if is_out_of_memory(error) else "crashed"
            write_error(*place, kind, f"{type(error).__name__}: {error}")


def _waited(submitted: Any, watch: Watch | None, progress: Path) -> str | None:
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
    return None


def _outcome(kind: str) -> Outcome:
    if kind == "oom":
        return "oom"
    return "timeout" if kind in ("timeout", "pruned") else "crashed"


def _emptied(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


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
