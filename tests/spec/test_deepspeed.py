import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.deepspeed import Translated, to_deepspeed
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import expand
from zbench.spec.foreign.deepspeed import from_deepspeed
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec

CONFIG: dict[str, Any] = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": 2e8,
    },
}


def imported(config: dict[str, Any]) -> TrialSpec:
    return expand(sweep_from_mapping(from_deepspeed(config).document, environ={})).trials[0]


def test_a_configuration_means_the_same_here() -> None:
    trial = imported(CONFIG)
    engine, optimizer = trial.engine, trial.engine.optimizer
    assert (trial.run.world_size, trial.workload.micro_batch_size) == (2, 2)
    assert (engine.zero_stage, engine.offload_optimizer, engine.dtype) == (3, "cpu", "bfloat16")
    assert (engine.gradient_accumulation_steps, engine.gradient_clipping) == (4, 0.5)
    assert engine.reduce_bucket_size == 2 * 10**8
    assert (optimizer.name, optimizer.lr, optimizer.betas) == ("adamw", 3e-4, (0.9, 0.95))


def test_what_the_file_leaves_out_takes_deepspeed_s_defaults() -> None:
    engine = imported({"zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam"}}).engine
    assert (engine.reduce_bucket_size, engine.allgather_bucket_size) == (5 * 10**8, 5 * 10**8)
    assert (engine.sub_group_size, engine.prefetch_bucket_size) == (10**9, 5 * 10**7)
    assert (engine.param_persistence_threshold, engine.optimizer.weight_decay) == (10**5, 0.0)
    assert engine.overlap_comm
    assert not imported({"zero_optimization": {"stage": 2}}).engine.overlap_comm


def test_whatever_does_not_map_is_named() -> None:
    config = CONFIG | {
        "scheduler": {"type": "WarmupLR"},
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}},
    }
    notes = from_deepspeed(config).notes
    named = {str(note).split(": ")[0] for note in notes}
    assert named == {"scheduler.type", "zero_optimization.offload_param.device"}
    assert "gradient_clipping" in {
        str(note).split(": ")[0] for note in from_deepspeed({"bf16": {"enabled": True}}).notes
    }


@pytest.mark.parametrize("config", [[], {}, {"name": "a sweep", "axes": {}}])
def test_what_is_no_deepspeed_configuration_is_refused(config: Any) -> None:
    with pytest.raises(UsageError):
        from_deepspeed(config)


def test_steps_that_the_script_ends_are_unmanaged_here() -> None:
    config = {**CONFIG, "managed_gradient_accumulation": False}
    trial = imported(config)
    assert (trial.engine.accumulation_mode, trial.engine.gradient_accumulation_steps) == ("unmanaged", 1)
    assert trial.workload.backwards_per_step == 4
    assert trial.run.world_size == 2
    texts = [note.text for note in from_deepspeed(config).notes if note.effect == "training"]
    assert any(text.startswith("managed_gradient_accumulation: false") for text in texts)
    assert imported({**config, "managed_gradient_accumulation": True}) == imported(CONFIG)
    with pytest.raises(UsageError, match="managed_gradient_accumulation"):
        from_deepspeed({**config, "managed_gradient_accumulation": "perhaps"})


@pytest.mark.parametrize(("stage", "overlaps"), [(0, False), (1, False), (2, True), (3, True)])
def test_an_unmanaged_export_is_one_that_deepspeed_takes(stage: int, overlaps: bool) -> None:
    engine = {"zero_stage": stage, "accumulation_mode": "unmanaged"}
    export = to_deepspeed(expand(SweepSpec.model_validate({"engine": engine})).trials[0])
    assert export.document["managed_gradient_accumulation"] is False
    assert export.document["zero_optimization"]["overlap_comm"] is overlaps
    assert any("overlap_comm" in note for note in export.notes) is not overlaps
    assert imported(export.document).engine.accumulation_mode == "unmanaged"


def test_export_names_what_the_training_script_must_do() -> None:
    constant = SweepSpec.model_validate({"workload": {"global_batch_size": 8}, "run": {"world_size": 2}})
    (note,) = to_deepspeed(expand(constant).trials[0]).notes
    assert "8 is for 2 ranks; for another number, change gradient_accumulation_steps (2)" in note


MICRO = {"train_micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize(
    ("batch", "world_size"),
    [
        (MICRO | {"train_batch_size": 16, "gradient_accumulation_steps": 1}, 8),
        (MICRO | {"train_batch_size": 8, "gradient_accumulation_steps": 2}, 2),
        (MICRO | {"train_batch_size": 16}, None),
        (MICRO | {"train_batch_size": "auto"}, None),
        ({"train_batch_size": 16}, None),
    ],
)
def test_the_world_size_is_read_off_a_batch_whose_other_factors_are_known(
    batch: dict[str, Any], world_size: int | None
) -> None:
    document = from_deepspeed(batch).document
    assert document.get("run", {}).get("world_size") == world_size
    is_total = world_size is None and batch["train_batch_size"] != "auto"
    assert document["workload"].get("global_batch_size") == (16 if is_total else None)


@pytest.mark.parametrize(("dtype", "scale"), [("float16", 1000.0), ("float16", 1024.0), ("bfloat16", 1000.0)])
def test_a_loss_scale_that_is_no_power_of_two_is_said_to_be_rounded(dtype: str, scale: float) -> None:
    engine = {"dtype": dtype, "initial_loss_scale": scale}
    notes = to_deepspeed(expand(SweepSpec.model_validate({"engine": engine})).trials[0]).notes
    assert any("powers of two" in note for note in notes) == ((dtype, scale) == ("float16", 1000.0))


BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}
STAGE, FLOATS = {"zero_optimization": {"stage": 2}}, {"data_types": {"grad_accum_dtype": "fp32"}}


@pytest.mark.parametrize(
    ("config", "accumulated", "reduced"),
    [
        (BF16 | STAGE, "bfloat16", None),
        (BF16, "float32", "bfloat16"),
        (FP16, "float16", None),
        (STAGE, "float32", None),
        (BF16 | STAGE | FLOATS, "float32", "bfloat16"),
        (BF16 | STAGE | FLOATS | {"communication_data_type": "fp32"}, "float32", None),
    ],
)
def test_gradients_are_what_deepspeed_makes_them_where_it_is_not_told(
    config: dict[str, Any], accumulated: str, reduced: str | None
) -> None:
    engine = EngineSpec.model_validate(from_deepspeed(config).document["engine"])
    assert (engine.grad_accum_dtype, engine.communication_dtype) == (accumulated, reduced)


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
