"""`zbench init`: from what a user has to a sweep file that can be run, and shipped sweeps by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, shipped_names
from zbench.spec.trial import TrialSpec

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000000},
    "scheduler": {"type": "WarmupLR"},
}
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 4
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, gradient_accumulation_steps: 2}
"""
FSDP = """
distributed_type: FSDP
use_cpu: true
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}
"""
ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 3,
    "learning_rate": 3e-4,
    "adam_beta2": 0.95,
    "bf16": True,
    "logging_steps": 10,
    "deepspeed": {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"},
}


def trials(file: Path) -> list[TrialSpec]:
    return expand(load_sweep(file)).trials


def written(zbench: Any, path: Path, source: str | None = None) -> tuple[TrialSpec, Any]:
    said = zbench("init", path, *(["--from", source] if source else []))
    assert said.code == 0, said.err
    return trials(path)[0], said


def test_a_first_file_is_commented_and_runs(zbench: Any, tmp_path: Path) -> None:
    written(zbench, tmp_path / "sweep.yaml")
    text = (tmp_path / "sweep.yaml").read_text()
    assert "# What is trained." in text
    assert len(trials(tmp_path / "sweep.yaml")) == 7
    assert zbench("init").code == 2, "never overwrites"
    assert zbench("plan", "sweep.yaml").code == 0


def test_from_deepspeed(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    trial, said = written(zbench, tmp_path / "a.yaml", "ds.json")
    assert (trial.workload.micro_batch_size, trial.engine.gradient_clipping) == (4, 0.5)
    assert trial.engine.reduce_bucket_size == 1_000_000
    assert "scheduler.type" in said.err
    assert any(t.engine.zero_stage == 2 for t in trials(tmp_path / "a.yaml"))


def test_from_accelerate(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE)
    trial, _ = written(zbench, tmp_path / "a.yaml", "accelerate.yaml")
    assert (trial.run.world_size, trial.engine.dtype) == (4, "bfloat16")
    assert trial.engine.gradient_accumulation_steps == 2
    found = {(t.engine.zero_stage, t.engine.offload_optimizer) for t in trials(tmp_path / "a.yaml")}
    assert (3, "cpu") in found


def test_from_accelerate_with_a_deepspeed_file_beside_it(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "accelerate.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    trial, _ = written(zbench, tmp_path / "a.yaml", "accelerate.yaml")
    assert trial.engine.gradient_clipping == 0.5


def test_from_fsdp(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    trial, _ = written(zbench, tmp_path / "a.yaml", "fsdp.yaml")
    assert trial.run.device == "cpu"
    assert "around-stage-2" in (tmp_path / "a.yaml").read_text()


def test_from_training_arguments(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "training_args.json").write_text(json.dumps(ARGUMENTS))
    trial, said = written(zbench, tmp_path / "a.yaml", "training_args.json")
    optimizer = trial.engine.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.weight_decay) == (3e-4, (0.9, 0.95), 0.0)
    assert (trial.workload.micro_batch_size, trial.engine.dtype) == (3, "bfloat16")
    assert trial.engine.gradient_clipping == 1.0, "the Trainer's default"
    assert trial.engine.prefetch_bucket_size == 50_000_000, "DeepSpeed's default"
    assert "logging_steps" in said.err


def test_from_a_model_of_transformers(zbench: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    trial, _ = written(zbench, tmp_path / "a.yaml", "hf:Qwen/Qwen3-0.6B")
    assert trial.workload.model == "hf:Qwen/Qwen3-0.6B"
    assert trial.workload.options == {"num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 2}))
    trial, _ = written(zbench, tmp_path / "b.yaml", "config.json")
    assert (trial.workload.model, trial.workload.options) == ("hf:config.json", {"n_layer": 2})


def test_from_a_model_of_ones_own(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "module_of_ones_own.py").write_text(
        "import torch\ndef make_model(): return torch.nn.Linear(1, 1)\n"
    )
    trial, said = written(zbench, tmp_path / "a.yaml", "module_of_ones_own:make_model")
    assert trial.workload.model == "module_of_ones_own:make_model"
    assert "does not take this micro-batch (2 tensors)" in said.err
    assert "batch = model.make_batch(generator, micro_batch_size, sequence_length)" in said.err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.json", None, "no such file; expected ds_config.json, accelerate.yaml"),
        ("list.json", "[1]", "expected a mapping of keys"),
        ("twice.json", '{"bf16": {}, "bf16": {}}', "twice.json: bf16: this key stands twice"),
        ("commented.json", '{"bf16": {"enabled": true}, // yes\n}', "not JSON"),
        ("other.json", '{"name": "x"}', "no DeepSpeed configuration"),
        ("hf:no-such-model", None, "nothing is downloaded"),
        ("nothere:make", None, "--from workload.model: cannot load 'nothere:make'"),
        ("json:lode", None, "module 'json' has no attribute 'lode'"),
    ],
)
def test_what_is_no_start_is_refused(
    zbench: Any, tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    found = zbench("init", "--from", name)
    assert found.code == 2
    assert said in found.err
    assert not (tmp_path / "sweep.yaml").exists()


def test_shipped_sweeps_are_found_by_name_anywhere(zbench: Any) -> None:
    assert "quickstart" in shipped_names()
    for name in shipped_names():
        few = ["--set", "axes={zero_stage: [0]}", "--set", "exclude=[]"] if name == "zoo" else []
        assert zbench("plan", name, "--json", *few).code in (0, 2), name
    assert json.loads(zbench("plan", "quickstart", "--json").out)["trials"]
    said = zbench("plan", "no-such-sweep")
    assert said.code == 2
    assert "`zbench init` writes one" in said.err


def test_a_file_of_ones_own_comes_before_a_shipped_one(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "quickstart").write_text("axes: {zero_stage: [1]}\n")
    assert len(json.loads(zbench("plan", "quickstart", "--json").out)["trials"]) == 1
