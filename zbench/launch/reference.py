"""Reference trajectories: each computed once a run, in a process of its own, when a trial needs it."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from zbench.launch import jobs
from zbench.launch.attempt import Group, Launcher
from zbench.launch.progress import ProgressTail, Watch
from zbench.record.record import Failure
from zbench.record.store import LOGS
from zbench.spec.trial import TrialSpec
from zbench.worker.job import ReferenceJob, reference_key

_PATIENCE = 4.0  # the reference plays all ranks in turn, and then again in float64


class References:
    """The trajectories of one run, kept in `references/`, and why some could not be computed."""

    def __init__(self, launcher: Launcher, target: str, run_dir: Path, base_dir: Path) -> None:
        self._launcher, self._target = launcher, target
        self._run_dir, self._base_dir = run_dir, base_dir
        self._found: dict[str, Path | Failure] = {}

    def known(self, trial: TrialSpec) -> bool:
        """Whether `get` answers at once."""
        return trial.verify.mode == "off" or reference_key(trial) in self._found

    def get(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Return the trial's trajectory, computed if missing, or why it failed; None if nothing is verified.

        watch: sees the progress lines of the computation; what it returns is ignored.
        """
        if trial.verify.mode == "off":
            return None
        key = reference_key(trial)
        if key not in self._found:
            self._found[key] = self._compute(trial, key, watch)
        return self._found[key]

    def _compute(self, trial: TrialSpec, key: str, watch: Watch | None) -> Path | Failure:
        path = self._run_dir / "references" / f"{key}.pt"
        if path.exists():
            return path
        path.parent.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=self._launcher.scratch))
        progress = scratch / "progress.jsonl"
        name = f"{LOGS}/reference-{key}"
        logs = self._run_dir / name
        job = ReferenceJob(
            trial=jobs.resolved(trial),
            run_dir=str(self._run_dir),
            base_dir=str(self._base_dir),
            reference_path=str(path),
            progress_path=str(progress) if watch else None,
        )
        group = Group(
            target=self._target,
            ranks=[jobs.reference_start(job, logs)],
            result_path=path,
            logs=logs,
            deadline=trial.run.timeout * _PATIENCE * trial.run.world_size,
            stop_when=_shower(progress, watch),
            scratch=scratch,
        )
        attempt = self._launcher.attempt(group, log_name=name)
        if attempt.error is None and not path.exists():
            return Failure("crashed", "its process ended without a result", f"{name}/rank0.log")
        return attempt.error or path


def _shower(progress: Path, watch: Watch | None) -> Callable[[], str | None] | None:
    """Return a function that shows new lines to `watch` and never ends the group."""
    if watch is None:
        return None
    tail = ProgressTail(progress)

    def show() -> str | None:
        for line in tail.new_lines():
            watch(line)
        return None

    return show
