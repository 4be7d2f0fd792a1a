"""Runs a function once on every rank of a trial, to measure what is no trial: rates, memory over a step."""

import json
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.launch import affinity, preload
from zbench.launch.jobs import process_starts, resolved
from zbench.launch.local import Group, Launcher
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob


def run_once(target: str, trial: TrialSpec, base_dir: Path, *, patience: float) -> Any:
    """Return the JSON that `target` (`module:function`, given a RankJob) writes on rank 0.

    ZbenchError, with the ranks' reason, where they fail or take longer than `patience` seconds.
    """
    ranks = trial.run.world_size
    with Launcher(preload.MODULES) as launcher:
        launcher.wait_until_ready()
        scratch, result = launcher.scratch, launcher.scratch / "result.json"
        logs = scratch / "once"
        logs.mkdir()
        meeting = f"file://{scratch}/meeting"
        job = RankJob(resolved(trial), 0, ranks, meeting, "", str(base_dir), str(result))
        starts = process_starts(job, logs, affinity.usable_cores())
        attempt = launcher.run(Group(target, starts, result, logs, patience), log_name="once")
        if attempt.error is not None:
            raise ZbenchError(attempt.error.message)
        return json.loads(result.read_text())
