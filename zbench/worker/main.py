"""The two entry points of a worker process: one rank of a trial, and the reference trajectory."""

import dataclasses
import sys
import traceback
from pathlib import Path

from zbench.record.environment import machine_name
from zbench.spec.accumulation import accumulation
from zbench.spec.trial import TrialSpec
from zbench.verify.plain_training import PlainRun, make_reference
from zbench.verify.trajectory import save_reference
from zbench.worker import process
from zbench.worker.failure import report
from zbench.worker.inputs import inputs_of
from zbench.worker.job import RankJob, ReferenceJob, threads_per_rank, write_json
from zbench.worker.progress import Progress
from zbench.worker.rank import run_trial, trial_workload
from zbench.worker.script import run_base, run_script


def run_rank(job: RankJob) -> None:
    """Run one rank of a trial to its end; rank 0 writes the result.

    A failure is written beside the result, with its traceback on stderr, and raised as SystemExit(1).
    """
    try:
        trial = TrialSpec.model_validate(job.trial)
        result = run_trial(job, trial) if trial.workload.command is None else run_script(job, trial)
        if job.rank == 0:
            ended = {"outcome": "ok", "error": None, "machine": machine_name()}
            write_json(Path(job.result_path), ended | result)
        process.stop()
    except BaseException as error:
        _give_up(error, job.result_path, job.rank)


def run_reference(job: ReferenceJob) -> None:
    """Compute and save the reference trajectory of a trial; failures as in `run_rank`."""
    try:
        trial = TrialSpec.model_validate(job.trial)
        if trial.workload.command is not None:
            return run_base(job, trial)
        process.set_threads(threads_per_rank(trial))
        workload = trial_workload(trial, job.base_dir)
        inputs = inputs_of(trial, Path(job.base_dir), workload.data)
        task = PlainRun(
            workload,
            trial.engine,
            accumulation(trial.engine, trial.workload),
            trial.run.warmup_steps + trial.run.steps,
            process.device_of(trial.run.device),
        )
        full = trial.verify.mode == "full"
        with Progress(job.progress_path) as progress:
            reference = make_reference(
                task, truth=full, on_step=lambda done, total: progress.step("reference", done, total)
            )
        save_reference(dataclasses.replace(reference, inputs=inputs), Path(job.reference_path))
    except BaseException as error:
        _give_up(error, job.error_stem, "reference")


def _give_up(error: BaseException, path: str, who: int | str) -> None:
    traceback.print_exc(file=sys.stderr)
    report(error, path, who)
    raise SystemExit(1) from error
