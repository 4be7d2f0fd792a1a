"""Two ranks that train with DeepSpeed, one trial after the other, and what torch's CPU allocator counted.

Runs under an interpreter that has DeepSpeed (`estimates.counted`): trials as JSON on stdin, for each a line
of JSON on stdout with the largest peak of the ranks, in bytes, or the error.
"""

from zbench.measure.shim import SHIM  # isort: skip - before torch, whose allocator it counts

import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench.engine.assembly.build import Instruments
from zbench.measure.clock import PhaseClock
from zbench.measure.memory import allocator_meter
from zbench.spec.trial import TrialSpec
from zbench.worker.loop import Trainer
from zbench.workloads import build_workload

RANKS = 2
STEPS = 3


def peak(config: dict[str, Any]) -> int:
    """Return the most that this rank allocates in the last step; those before it build up."""
    trial = TrialSpec.model_validate(config)
    workload = build_workload(trial.workload, seed=0, world_size=RANKS, base_dir=Path.cwd())
    gc.collect()
    assert SHIM is not None
    meter = allocator_meter(SHIM)
    trainer = Trainer(
        trial, workload, Path.cwd(), Instruments(), device=torch.device("cpu"), clock=PhaseClock()
    )
    for step in range(STEPS):
        batches = trainer.batches(step)
        gc.collect()
        meter.reset()
        trainer.step(batches)
        most = meter.peak()
        del batches
    trainer.engine.close()
    return most


def run(rank: int, store: str, config: dict[str, Any], answers: int) -> None:
    """Be one rank of one trial; rank 0 writes the line."""
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = str(os.getppid())  # DeepSpeed names memory that ranks share by it
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        found: int | str = peak(config)
    except Exception:
        found = traceback.format_exc()
    of_ranks: list[Any] = [None] * RANKS
    dist.all_gather_object(of_ranks, found)
    errors = [one for one in of_ranks if isinstance(one, str)]
    if rank == 0:
        line = {"error": errors[0]} if errors else {"peak": max(of_ranks)}
        os.write(answers, (json.dumps(line) + "\n").encode())


def forked(rank: int, store: str, config: dict[str, Any], answers: int) -> int:
    """Return the process that is one rank: a new one for each trial, so that none holds what another left."""
    process = os.fork()
    if process == 0:
        try:
            run(rank, store, config, answers)
        finally:
            os._exit(0)
    return process


def main() -> None:
    """Fork the ranks of one trial after the other, once torch and DeepSpeed are imported."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.accelerator import get_accelerator

    for module in ("deepspeed.runtime.zero.muon.muon_optimizer", "torch._dynamo", "zbench.peers.deepspeed"):
        importlib.import_module(module)  # once, for all ranks, and so are these
    for builder in ("ShareMemCommBuilder", "CPUAdamBuilder"):
        get_accelerator().create_op_builder(builder).load()

    configs = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        for number, config in enumerate(configs):
            ranks = [forked(rank, f"{folder}/{number}", config, answers) for rank in range(RANKS)]
            for process in ranks:
                os.waitpid(process, 0)


if __name__ == "__main__":
    main()
