"""The smallest trial, and a warm server that runs trials, for benches that measure the measuring."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zbench.launch.executor import Targets
from zbench.launch.trial import TrialRunner, local_runner
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import TrialSpec


def smallest_trial() -> TrialSpec:
    """Return a trial of one rank, eight steps and no verification."""
    sweep = sweep_from_mapping(
        {
            "name": "smallest",
            "workload": {"model": "gpt", "preset": "nano", "sequence_length": 64, "micro_batch_size": 2},
            "run": {"world_size": 1, "threads_per_rank": 1, "warmup_steps": 2, "steps": 8},
            "verify": {"mode": "off"},
        },
        environ={},
    )
    (found,) = expand(sweep).trials
    return found


@contextmanager
def warm_runner(*, targets: Targets | None = None, rerun_disturbed: bool = False) -> Iterator[TrialRunner]:
    """Yield a runner whose server has started; what its trials write goes with it."""
    with tempfile.TemporaryDirectory(prefix="zbench-bench-") as scratch:
        runner = local_runner(Path(scratch), Path.cwd(), targets=targets, rerun_disturbed=rerun_disturbed)
        with runner:
            runner.wait_until_ready()
            yield runner
