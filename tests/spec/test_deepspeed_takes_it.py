"""Every Adam that an export names is one that DeepSpeed makes and steps with.

Runs where DeepSpeed is installed, or where the variable DEEPSPEED_PYTHON names an interpreter that has it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zbench.spec.deepspeed import Translated, to_deepspeed
from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec

PYTHON = os.environ.get("DEEPSPEED_PYTHON") or (
    sys.executable if importlib.util.find_spec("deepspeed") else None
)
STEPS = """
import json, os, socket, sys, torch
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
launch = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
os.environ |= {name: str(value) for name, value in launch.items()} | {"DS_ACCELERATOR": "cpu"}
import deepspeed
deepspeed.init_distributed("gloo")
made = []
for config in json.loads(sys.argv[1]):
    model = torch.nn.Linear(8, 1)
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    engine.backward(engine(torch.ones(2, 8, dtype=next(model.parameters()).dtype)).mean())
    engine.step()
    adam = optimizer.optimizer
    made.append([type(adam).__name__, adam.defaults.get("amsgrad"), adam.defaults.get("bias_correction")])
print("MADE", json.dumps(made))
"""
CASES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"zero_stage": 0, "dtype": "bfloat16"}, ["AdamW", False, None]),
    ({"zero_stage": 1, "dtype": "bfloat16"}, ["AdamW", False, None]),
    ({"zero_stage": 2}, ["AdamW", False, None]),
    ({"zero_stage": 1, "optimizer": {"name": "adam"}}, ["Adam", False, None]),
    ({"zero_stage": 2, "optimizer": {"amsgrad": True}}, ["AdamW", True, None]),
    ({"zero_stage": 2, "offload_optimizer": "cpu"}, ["DeepSpeedCPUAdam", False, True]),
    ({"zero_stage": 3, "offload_optimizer": "cpu", "optimizer": {"bias_correction": False}},
     ["DeepSpeedCPUAdam", False, False]),
    ({"zero_stage": 3, "offload_optimizer": "cpu", "optimizer": {"amsgrad": True}}, ["AdamW", True, None]),
]  # fmt: skip


def exported(engine: dict[str, Any], device: str = "cpu") -> Translated:
    run = {"world_size": 1, "device": device}
    return to_deepspeed(expand(SweepSpec.model_validate({"engine": engine, "run": run})).trials[0])


@pytest.mark.skipif(PYTHON is None, reason="DeepSpeed is not installed, and DEEPSPEED_PYTHON names none")
@pytest.mark.timeout(600)
def test_deepspeed_makes_the_adam_that_an_export_names(tmp_path: Path) -> None:
    configs = json.dumps([exported(engine).document for engine, _ in CASES])
    command = [str(PYTHON), "-c", STEPS, configs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("MADE"))
    assert json.loads(line.removeprefix("MADE")) == [expected for _, expected in CASES]
