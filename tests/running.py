"""Trials without a sweep."""

from pathlib import Path

from zbench.launch.executor import Targets
from zbench.launch.process.local import LocalExecutor
from zbench.launch.trial import OnNotice, TrialRunner


def local_runner(
    run_dir: Path,
    base_dir: Path,
    *,
    targets: Targets | None = None,
    rerun_disturbed: bool = True,
    on_notice: OnNotice = lambda _: None,
) -> TrialRunner:
    """Return a runner of trials on this machine. base_dir: where relative paths of the sweep begin."""
    executor = LocalExecutor(run_dir, base_dir, targets=targets)
    return TrialRunner(executor, run_dir, rerun_disturbed=rerun_disturbed, on_notice=on_notice)
