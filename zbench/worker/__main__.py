"""`python -m zbench.worker TRIAL.json --result RESULT.json`: one rank of a trial under torchrun.

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank N --master-addr HOST --master-port PORT \\
        -m zbench.worker trial.json --result result.json

Rank, world size and rendezvous come from torchrun's environment; `run.world_size` of the trial must agree
with it. The trial's file holds a TrialSpec as JSON (a record's `config`). Rank 0 writes the result and,
unless `--reference` names a trajectory that exists, computes one first; on several machines both files belong
on a shared file system.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

from zbench.errors import UsageError
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob, ReferenceJob, call, reference_key

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(arguments: list[str]) -> None:
    """Run this process's rank; exits with 2 for bad input and 1 for a trial that failed."""
    options = _parse(arguments)
    try:
        job = _job(options, _read_trial(options.trial))
    except UsageError as error:
        print(f"zbench.worker: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    importlib.import_module("zbench.measure.shim")  # before torch, which only now comes in
    code = 0
    if job.rank == 0 and job.reference_path and not Path(job.reference_path).exists():
        reference = ReferenceJob(job.trial, job.run_dir, job.base_dir, job.reference_path)
        code = call(
            "zbench.worker.rank:run_reference", lambda: reference, (reference.error_stem, "reference")
        )
    code = code or call("zbench.worker.rank:run_rank", lambda: job, (job.result_path, job.rank))
    if code:
        raise SystemExit(code)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="zbench.worker", description="Run one rank of a trial under torchrun."
    )
    parser.add_argument("trial", type=Path, help="JSON file with the trial's configuration")
    parser.add_argument("--result", type=Path, required=True, help="where rank 0 writes the result")
    parser.add_argument("--reference", type=Path, help="reference trajectory, computed if it is not there")
    parser.add_argument(
        "--base-dir", type=Path, help="where relative paths begin (default: the trial's directory)"
    )
    return parser.parse_args(arguments)


def _read_trial(path: Path) -> TrialSpec:
    try:
        return TrialSpec.model_validate(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} holds no trial configuration: {str(error).splitlines()[0]}") from error


def _job(options: argparse.Namespace, trial: TrialSpec) -> RankJob:
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise UsageError(f"{', '.join(missing)} not set; start this with torchrun")
    place = {name: int(os.environ[name]) for name in _NEEDED[:4]}
    if place["WORLD_SIZE"] != trial.run.world_size:
        raise UsageError(
            f"torchrun started {place['WORLD_SIZE']} ranks, but run.world_size is {trial.run.world_size}"
        )
    if trial.workload.command is not None:
        raise UsageError("workload.command: a command starts its own ranks; run it with `zbench run`")
    if trial.engine.engine_python is not None:
        raise UsageError(
            "engine.engine_python: torchrun's own interpreter runs the ranks; start that of the environment"
        )
    reference = options.reference or options.result.with_name(f"reference-{reference_key(trial)}.safetensors")
    return RankJob(
        trial=trial.model_dump(mode="json"),
        rank=place["RANK"],
        world_size=place["WORLD_SIZE"],
        init_method="env://",
        run_dir=str(options.result.parent),
        base_dir=str(options.base_dir or options.trial.parent),
        result_path=str(options.result),
        reference_path=None if trial.verify.mode == "off" else str(reference),
        local_rank=place["LOCAL_RANK"],
        local_world_size=place["LOCAL_WORLD_SIZE"],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of torch's process groups can abort a process that unloads around them
