"""Trials without a sweep, and tasks without a scheduler."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zbench.launch.events import Notice
from zbench.launch.executor import Attempt, Batch, Executor, OnLine, Targets, Task
from zbench.launch.process.local import LocalExecutor
from zbench.launch.trial import TrialRunner


def local_runner(
    run_dir: Path,
    base_dir: Path,
    *,
    targets: Targets | None = None,
    rerun_disturbed: bool = True,
    on_notice: Callable[[str], None] = lambda _: None,
) -> TrialRunner:
    """Return a runner of trials on this machine. base_dir: where relative paths of the sweep begin."""
    executor = LocalExecutor(run_dir, base_dir, targets=targets)
    return TrialRunner(executor, run_dir, rerun_disturbed=rerun_disturbed, on_event=told_by(on_notice))


def told_by(on_notice: Callable[[str], None]) -> Callable[[Any], None]:
    """Return what tells the texts of notices alone."""
    return lambda event: on_notice(event.text) if isinstance(event, Notice) else None


def run(executor: Executor, task: Task, on_line: OnLine = lambda *_: None) -> Attempt:
    """Run one task alone and return how it ended."""
    handle = executor.submit(Batch((task,)), on_line)
    ended, same, attempt = executor.next_ended()
    assert (ended, same.name) == (handle, task.name)
    return attempt
