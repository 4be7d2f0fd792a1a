"""Reference trajectories: each computed once a run, when a trial first needs it."""

from collections.abc import Sequence
from pathlib import Path

from zbench.launch.executor import Executor, ReferenceTask
from zbench.launch.progress import Watch
from zbench.record.record import Failure
from zbench.record.store import StorageError
from zbench.spec.trial import TrialSpec
from zbench.worker.job import reference_key

REFERENCES = "references"


def is_verified(trial: TrialSpec) -> bool:
    """Whether a trial is held against anything: a command that saves no checkpoint is not."""
    saves_nothing = trial.workload.command is not None and trial.workload.checkpoint is None
    return trial.verify.mode != "off" and not saves_nothing


class References:
    """The trajectories of one run, kept in `references/`, and why some could not be computed."""

    def __init__(self, executor: Executor, run_dir: Path) -> None:
        self._executor, self._directory = executor, run_dir / REFERENCES
        self._found: dict[str, Path | Failure] = {}

    def known(self, trial: TrialSpec) -> bool:
        """Whether `get` answers at once."""
        return not is_verified(trial) or reference_key(trial) in self._found

    def missing(self, trials: Sequence[TrialSpec]) -> list[ReferenceTask]:
        """Return the computations that `get` would start for these trials, each once."""
        wanted = {reference_key(trial): trial for trial in trials if not self.known(trial)}
        paths = {key: self._path(key) for key in wanted}
        return [ReferenceTask(wanted[key], path) for key, path in paths.items() if not path.exists()]

    def get(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Return the trial's trajectory, computed if missing, or why it failed; None if nothing is verified.

        watch: sees the progress lines of the computation; what it returns is ignored. StorageError where
        there was no room to save the trajectory: the run stops, and verifies when it is resumed.
        """
        if not is_verified(trial):
            return None
        key = reference_key(trial)
        if key not in self._found:
            self._found[key] = self._compute(trial, key, watch)
        return self._found[key]

    def _compute(self, trial: TrialSpec, key: str, watch: Watch | None) -> Path | Failure:
        path = self._path(key)
        if path.exists():
            return path

        def shown(line: dict[str, object]) -> None:
            if watch is not None:
                watch(line)

        task = ReferenceTask(trial, path)
        attempt = self._executor.run(task, shown if watch else None)
        if attempt.was_killed:
            attempt = self._executor.run(task, shown if watch else None)
        if attempt.error is not None and attempt.error.kind == "storage":
            raise StorageError(f"no reference could be saved: {attempt.error.message}; use --resume")
        return attempt.error or path

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.safetensors"
