"""The smallest trial, a warm server that runs trials, and a neighbour that keeps every core busy."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from zbench.launch.process.local import LocalExecutor
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec

_BUSY = """
import os, sys
core, parent = int(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


def smallest_trial(number: int = 0) -> TrialSpec:
    """Return a trial of two ranks, 16 steps and no verification; trials of all numbers do the same work."""
    return TrialSpec.model_validate(
        {
            "workload": {"model": "gpt", "preset": "nano", "sequence_length": 64, "micro_batch_size": 2},
            "run": {"world_size": 2, "threads_per_rank": 1, "warmup_steps": 2, "steps": 16},
            "engine": {"zero_stage": 1, "reduce_bucket_size": 100_000_000 + number},
            "verify": {"mode": "off"},
        }
    )


def steadier_trial() -> TrialSpec:
    """Return a trial whose steps are long enough to vary by 1 to 2 % on a quiet machine."""
    model = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 4096}
    workload = {"model": "gpt", "options": model, "sequence_length": 128, "micro_batch_size": 2}
    return TrialSpec.model_validate(smallest_trial().model_dump(mode="json") | {"workload": workload})


def heat(runner: TrialRunner, trials: Sequence[TrialSpec], repeat: int) -> list[Record]:
    """Return one repeat of trials that took turns with one another and with the yardsticks."""
    return runner.run_heat(trials, repeat)


@contextlib.contextmanager
def warm_runner(*, rerun_disturbed: bool = False) -> Iterator[TrialRunner]:
    """Yield a runner whose server has started; what its trials write goes with it."""
    with tempfile.TemporaryDirectory(prefix="zbench-bench-") as scratch:
        executor = LocalExecutor(Path(scratch), Path.cwd(), targets=None)
        with TrialRunner(executor, Path(scratch), rerun_disturbed=rerun_disturbed) as runner:
            executor.launchers[None].wait_until_ready()
            yield runner


@contextlib.contextmanager
def neighbour(present: bool = True) -> Iterator[None]:
    """Keep every core busy inside the context; the processes end by themselves if this one dies."""
    command = [sys.executable, "-S", "-c", _BUSY]
    cores = sorted(os.sched_getaffinity(0)) if present else []
    busy = [subprocess.Popen([*command, str(core), str(os.getpid())]) for core in cores]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()
