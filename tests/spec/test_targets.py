"""Exports are what their targets take: read by the targets' own parsers, and run where torch alone does."""

import json
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.starting import starting_sweep
from zbench.spec.sweep import SweepSpec
from zbench.spec.targets import TARGETS, Exported, measured_by
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec

ENGINES: list[dict[str, Any]] = [
    {},
    {"zero_stage": 1, "gradient_clipping": 1.0, "dtype": "bfloat16"},
    {"zero_stage": 2, "offload_optimizer": "cpu", "gradient_accumulation_steps": 4},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu", "dtype": "float16"},
    {"engine": "fsdp2", "zero_stage": 3, "gradient_clipping": 0.5},
]
each_engine = pytest.mark.parametrize("engine", ENGINES, ids=str)


def trial(engine: dict[str, Any], **workload: Any) -> TrialSpec:
    run = {"world_size": 2, "device": "cpu"}
    return expand(SweepSpec.model_validate({"engine": engine, "workload": workload, "run": run})).trials[0]


def exported(target: str, engine: dict[str, Any], **workload: Any) -> Exported:
    return TARGETS[target](trial(engine, **workload))


@each_engine
@pytest.mark.parametrize("target", TARGETS)
def test_no_export_depends_on_the_number_of_ranks(target: str, engine: dict[str, Any]) -> None:
    two = trial(engine)
    eight = two.model_copy(update={"run": two.run.model_copy(update={"world_size": 8})})
    name = two.trial_id
    assert TARGETS[target](eight).text.replace(eight.trial_id, name) == TARGETS[target](two).text


@each_engine
def test_accelerate_reads_its_file(tmp_path: Path, engine: dict[str, Any]) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    file = tmp_path / "accelerate.yaml"
    file.write_text(exported("accelerate", engine).text)
    config = config_args.load_config_from_file(str(file))
    assert config.mixed_precision == {"bfloat16": "bf16", "float16": "fp16"}.get(
        engine.get("dtype", ""), "no"
    )
    kind = config.distributed_type.value
    if engine.get("engine") == "fsdp2":
        assert (kind, config.fsdp_config["fsdp_version"]) == ("FSDP", 2)
    elif engine.get("zero_stage"):
        assert (kind, config.deepspeed_config["zero_stage"]) == ("DEEPSPEED", engine["zero_stage"])
        assert config.deepspeed_config["offload_optimizer_device"] == engine.get("offload_optimizer", "none")
    else:
        assert kind == "MULTI_CPU"


@each_engine
def test_the_trainer_reads_its_arguments(tmp_path: Path, engine: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    document = json.loads(exported("hf-trainer", engine, micro_batch_size=3).text)
    config = document.pop("deepspeed", None)
    assert (config is not None) == (engine.get("zero_stage", 0) > 0 and "engine" not in engine)
    if config is not None:  # the Trainer refuses a contradiction
        assert config["train_micro_batch_size_per_gpu"] == document["per_device_train_batch_size"] == 3
        assert config["gradient_accumulation_steps"] == document["gradient_accumulation_steps"]
        assert config["gradient_clipping"] == document["max_grad_norm"]
        assert config["optimizer"]["params"]["lr"] == document["learning_rate"]
    document |= {"output_dir": str(tmp_path), "bf16": False, "fp16": False}  # this machine may have neither
    document.pop("fsdp", None)
    file = tmp_path / "training_args.json"
    file.write_text(json.dumps(document))
    (arguments,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_json_file(str(file))
    assert arguments.learning_rate == 1e-3
    assert arguments.gradient_accumulation_steps == engine.get("gradient_accumulation_steps", 1)
    assert arguments.max_grad_norm == engine.get("gradient_clipping", 0.0)


@pytest.mark.parametrize("target", TARGETS)
def test_an_export_says_which_engine_was_measured(target: str) -> None:
    assert f"zbench's own engine, not of {target}; to measure {target}, " in measured_by(trial({}), target)
    other = measured_by(trial({"engine": "fsdp2", "zero_stage": 3}), target)
    verb = "were measured with" if target == "fsdp2" else "are those of"
    assert other.startswith(f"The speed and verdict {verb} fsdp2")
    with_command = trial({}).model_copy(update={"workload": WorkloadSpec(command="python train.py")})
    assert "those of the command that ran" in measured_by(with_command, target)
    assert "zbench's own engine, not of fsdp2" in " ".join(exported("fsdp2", {}).text.split())


@each_engine
def test_fsdp2_code_trains(tmp_path: Path, engine: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    export = exported("fsdp2", engine)
    names: dict[str, Any] = {}
    exec(export.text, names)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.ModuleList([nn.Linear(4, 4)])[0], nn.Linear(4, 1))
        before = [p.detach().clone() for p in model.parameters()]
        sharded = names["shard"](model, 1, "cpu")
        optimizer = names["make_optimizer"](sharded)
        steps = names["GRADIENT_ACCUMULATION_STEPS"]
        names["step"](sharded, optimizer, (sharded(torch.ones(2, 4)).float().mean() for _ in range(steps)))
        after = [p.full_tensor() for p in sharded.parameters()]
        assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    finally:
        dist.destroy_process_group()


@each_engine
def test_init_reads_fsdp2_code_back(tmp_path: Path, engine: dict[str, Any]) -> None:
    file = tmp_path / "exported.py"
    file.write_text(exported("fsdp2", {**engine, "optimizer": {"lr": 0.25, "betas": [0.5, 0.75]}}).text)
    started = starting_sweep(str(file), tmp_path)
    sweep = sweep_from_mapping(started.document, environ={})
    if "float16" in engine.values():
        assert "engine.dtype: fsdp2 scales no loss here; float32 is written" in map(str, started.notes)
        assert sweep.engine.dtype == "float32"
        return
    again = TARGETS["fsdp2"](sweep_trial := TrialSpec.model_validate(_as_one(sweep)))
    assert sweep_trial.engine.optimizer.betas == (0.5, 0.75)
    code, same = (text.partition("import torch\n")[2].strip() for text in (file.read_text(), again.text))
    assert same == code
    file.write_text(file.read_text().replace("GRADIENT_ACCUMULATION_STEPS = ", "STEPS = "))
    with pytest.raises(UsageError, match="was changed"):
        starting_sweep(str(file), tmp_path)


def _as_one(sweep: SweepSpec) -> dict[str, Any]:
    """Return the configuration of a sweep of init at the first value of its axes."""
    engine = sweep.engine.model_dump() | {key: values[0] for key, values in sweep.axes.items()}
    return {"workload": sweep.workload.model_dump(), "run": {"world_size": 2}, "engine": engine}
