"""One repeat of one trial: TrialSpec in, Record out, whatever the trial does."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from zbench.launch import affinity, jobs, preload
from zbench.launch.attempt import Attempt, Group, Launcher, OnNotice
from zbench.launch.progress import ProgressTail, Watch
from zbench.launch.reference import References
from zbench.record import lines
from zbench.record.record import SCHEMA_VERSION, Failure, Record
from zbench.record.store import LOGS
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob

_LASTING_LOAD = 3
"""After so many repeats that stayed disturbed when run again, disturbed repeats are no longer run again."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What runs in the processes (`module:function`), and what the server imports before it forks them."""

    rank: str = "zbench.worker.main:run_rank"
    reference: str = "zbench.worker.main:run_reference"
    modules: tuple[str, ...] = preload.MODULES


DEFAULT_TARGETS = Targets()


class TrialRunner:
    """Runs trials one after another in processes forked from a warm server. A context manager.

    run_dir: the run directory; its name is the records' run_id, and `logs/` and `references/` in it are used.
    base_dir: where relative paths of the sweep begin. The server starts to import at once, in the background.
    """

    def __init__(
        self,
        run_dir: Path,
        base_dir: Path,
        *,
        targets: Targets | None = None,
        rerun_disturbed: bool = True,
        on_notice: OnNotice = lambda _: None,
    ) -> None:
        self.run_dir, self.base_dir = run_dir.absolute(), base_dir.absolute()
        self._targets = targets or DEFAULT_TARGETS
        self._launcher = Launcher(self._targets.modules, on_notice)
        self._tell = on_notice
        self._references = References(self._launcher, self._targets.reference, self.run_dir, self.base_dir)
        self._cores = affinity.usable_cores()
        self._reruns_left = _LASTING_LOAD if rerun_disturbed else 0

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        """Run one repeat and return its Record, whatever became of it; the reference is computed if missing.

        watch: sees each progress line of rank 0; a reason that it returns ends the repeat (outcome
        `timeout`, error kind `pruned`). Where the reference finds the trial's input bad, nothing runs (error
        kind `usage`).
        """
        reference = self.reference(trial)
        if isinstance(reference, Failure) and reference.kind == "usage":
            return self._identified(trial, repeat, {"outcome": "crashed", "error": reference})
        path = reference if isinstance(reference, Path) else None
        record, attempt = self._run_once(trial, repeat, path, watch)
        if self._worth_a_rerun(attempt):
            self._tell(f"{'; '.join(attempt.warnings)}; measuring it again")
            again, second = self._run_once(trial, repeat, path, watch)
            if _severity(second) < _severity(attempt):
                record, attempt = again, second
            self._reruns_left = _LASTING_LOAD if _severity(attempt) <= 1 else self._reruns_left - 1
        warnings = [*record.warnings, *attempt.warnings]
        if isinstance(reference, Failure):
            warnings.append(f"not verified: the reference could not be computed: {reference.message}")
        return replace(record, warnings=warnings)

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Return the trial's reference trajectory, or why it failed; None where nothing is verified."""
        return self._references.get(trial, watch)

    def has_reference(self, trial: TrialSpec) -> bool:
        """Whether `run` would start at once, without computing a reference first."""
        return self._references.known(trial)

    def wait_until_ready(self) -> tuple[str, ...]:
        """Return when the server has imported everything: the imports that failed, in words."""
        return self._launcher.wait_until_ready().problems

    @property
    def server_pid(self) -> int:
        """The process id of the warm server."""
        return self._launcher.server_pid

    def close(self) -> None:
        """End the server; nothing that was started is left."""
        self._launcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_once(
        self, trial: TrialSpec, repeat: int, reference: Path | None, watch: Watch | None
    ) -> tuple[Record, Attempt]:
        name = f"{LOGS}/{trial.trial_id}-r{repeat}"
        scratch = Path(tempfile.mkdtemp(dir=self._launcher.scratch))
        progress = scratch / "progress.jsonl"
        job = RankJob(
            trial=jobs.resolved(trial),
            rank=0,
            world_size=trial.run.world_size,
            init_method=f"file://{scratch}/rendezvous",
            run_dir=str(self.run_dir),
            base_dir=str(self.base_dir),
            result_path=str(scratch / "result.json"),
            reference_path=str(reference) if reference else None,
            progress_path=str(progress) if watch else None,
            repeat=repeat,
        )
        logs = self.run_dir / name
        group = Group(
            target=self._targets.rank,
            ranks=jobs.rank_starts(job, logs, self._cores),
            result_path=Path(job.result_path),
            logs=logs,
            deadline=trial.run.timeout,
            stop_when=_stopper(progress, watch),
            scratch=scratch,
            memory_limit=trial.run.memory_limit,
        )
        attempt = self._launcher.attempt(group, log_name=name)
        record = self._record(trial, repeat, attempt, group.result_path, name)
        shutil.rmtree(scratch, ignore_errors=True)
        return record, attempt

    def _record(self, trial: TrialSpec, repeat: int, attempt: Attempt, result: Path, logs: str) -> Record:
        known: dict[str, Any] = {"outcome": attempt.outcome, "error": attempt.error}
        if attempt.outcome == "ok":
            try:
                known = json.loads(result.read_text())
            except (OSError, ValueError):
                message = "the ranks ended without a result"
                known = {"outcome": "crashed", "error": Failure("crashed", message, f"{logs}/rank0.log")}
        return self._identified(trial, repeat, known)

    def _identified(self, trial: TrialSpec, repeat: int, known: dict[str, Any]) -> Record:
        """Return what is known as a Record of this repeat."""
        identity = {"run_id": self.run_dir.name, "trial_id": trial.trial_id, "repeat": repeat}
        what = {"axes": trial.axes, "config": trial.config(), "schema_version": SCHEMA_VERSION}
        return lines.decode(identity | what | known, "the result of a trial")

    def _worth_a_rerun(self, attempt: Attempt) -> bool:
        return attempt.outcome == "ok" and self._reruns_left > 0 and _severity(attempt) > 1


def run_trial(
    trial: TrialSpec,
    *,
    repeat: int = 0,
    run_dir: Path,
    base_dir: Path,
    watch: Watch | None = None,
    runner: TrialRunner | None = None,
) -> Record:
    """Run one repeat of one trial and return its Record; a runner, if given, saves the start of a server."""
    if runner is not None:
        return runner.run(trial, repeat=repeat, watch=watch)
    with TrialRunner(run_dir, base_dir) as own:
        return own.run(trial, repeat=repeat, watch=watch)


def _stopper(progress: Path, watch: Watch | None) -> Callable[[], str | None] | None:
    if watch is None:
        return None
    tail = ProgressTail(progress)
    return lambda: tail.feed(watch)


def _severity(attempt: Attempt) -> float:
    return attempt.disturbance.severity if attempt.disturbance is not None and attempt.error is None else 2.0
