"""The first sweep around what a user has: each kind of file is known by its keys."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.expand import expand
from zbench.spec.foreign.accelerate import from_accelerate
from zbench.spec.foreign.trainer import from_training_args
from zbench.spec.load import sweep_file, sweep_from_mapping
from zbench.spec.starting import commented, starting_sweep


def around(tmp_path: Path, data: Any) -> dict[str, Any]:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(data))
    return dict(starting_sweep(str(file), tmp_path).document)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"distributed_type": "NO"}, "accelerate"),
        ({"compute_environment": "LOCAL_MACHINE"}, "accelerate"),
        ({"per_device_train_batch_size": 4}, "trainer"),
        ({"output_dir": "out"}, "trainer"),
        ({"learning_rate": 1e-4}, "trainer"),
    ],
)
def test_a_file_is_known_by_its_keys_and_becomes_a_sweep(
    data: dict[str, Any], name: str, tmp_path: Path
) -> None:
    sweep = sweep_from_mapping(around(tmp_path, data), environ={})
    assert sweep.name == name
    assert {trial.engine.zero_stage for trial in expand(sweep).trials} >= {2, 3}


def test_the_stage_of_a_deepspeed_configuration_becomes_an_axis(tmp_path: Path) -> None:
    without = around(tmp_path, {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})
    assert without["name"] == "deepspeed-around-stage-0"
    document = around(tmp_path, {"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5})
    assert document["name"].endswith("-around-stage-2")
    assert "zero_stage" not in document["engine"]
    assert document["engine"]["gradient_clipping"] == 0.5


def test_offloaded_parameters_leave_stage_3_alone(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    fsdp = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}
    for given in ({"zero_optimization": zero}, fsdp):
        document = around(tmp_path, given)
        assert document["axes"]["zero_stage"] == [3]
        assert "exclude" not in document


@pytest.mark.parametrize(
    ("source", "options"),
    [("hf:gpt2", {"n_layer": 2}), ("hf:llama-3-8b", {"num_hidden_layers": 2})],
)
def test_a_model_of_transformers_has_two_layers_at_first(
    source: str, options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)  # transformers takes seconds to ask
    started = starting_sweep(source, tmp_path, "mine")
    workload = started.document["workload"]
    assert (workload["model"], workload["options"]) == (source, options)
    assert (started.document["name"], started.document["run"]["repeats"]) == ("mine", 5)
    (note,) = started.notes
    assert re.search(r"cuts the model to 2 of its (\d+ )?layers", note.text)


def test_a_sweep_file_says_why_the_model_has_two_layers() -> None:
    workload = {"model": "hf:gpt2", "options": {"n_layer": 2, "dropout": 0.5}}
    text = commented({"name": "x", "workload": workload, "axes": {}}, "hf:gpt2", "here.json")
    written = [line for line in text.splitlines() if "`options`" in line or line[:1] not in ("", "#")]
    schema, origin = "# yaml-language-server: $schema=here.json", "# A sweep for zbench, made from hf:gpt2."
    assert text.startswith(f"{schema}\n{origin}")
    assert written[:3] == [
        "name: x", "# `options` cuts the model to 2 layers; remove n_layer for all.", "workload:",
    ]  # fmt: skip
    assert text.count("cuts the model") == 1
    command = commented({"workload": {"command": "train"}, "run": {"options": {"n_layer": 2}}}, None)
    assert "# The command that trains;" in command
    assert "# The model and its data." not in command
    assert "cuts the model" not in command
    assert command.startswith("# A sweep for zbench. Run it")


@pytest.mark.parametrize("data", [[1, 2], {"nonsense": 1}])
def test_a_file_of_no_known_form_is_refused_with_the_forms(data: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected one of ds_config|or use one of ds_config"):
        around(tmp_path, data)
    with pytest.raises(UsageError, match=r"no such file; expected ds_config\.json"):
        starting_sweep(str(tmp_path / "absent.json"), tmp_path)


def test_a_bare_name_is_a_shipped_sweep_unless_such_a_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweep_file(Path("quickstart")).read_text().startswith("#")
    for other in ("quickstart.yaml", "here/quickstart", "no-such-sweep"):
        assert sweep_file(Path(other)) == Path(other)
    Path("quickstart").touch()
    assert sweep_file(Path("quickstart")) == Path("quickstart")


def engine_of_accelerate(config: dict[str, Any], base_dir: Path = Path()) -> dict[str, Any]:
    engine: dict[str, Any] = from_accelerate(config, base_dir).document["engine"]
    return engine


def test_accelerates_own_deepspeed_keys_are_read_and_those_left_to_it_are_not() -> None:
    theirs = {
        "zero_stage": 2, "offload_optimizer_device": "cpu", "offload_param_device": "auto",
        "gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "zero3_init_flag": True, "hpz": 8,
    }  # fmt: skip
    translated = from_accelerate({"deepspeed_config": theirs, "distributed_type": "DEEPSPEED"}, Path())
    assert translated.document["engine"] == {
        "zero_stage": 2, "offload_optimizer": "cpu",
        "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
    }  # fmt: skip
    assert [str(note) for note in translated.notes] == [
        "deepspeed_config.offload_param_device: auto; zbench's default is kept",
        "deepspeed_config.zero3_init_flag",
        "deepspeed_config.hpz: no key of accelerate, which refuses it",
    ]


def test_a_deepspeed_file_that_is_named_says_the_dtype_itself(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}})
    )
    config = {"deepspeed_config": {"deepspeed_config_file": "ds.json"}, "mixed_precision": "fp16"}
    engine = engine_of_accelerate(config, tmp_path)
    assert (engine["zero_stage"], engine["dtype"]) == (1, "bfloat16")


def test_of_the_launch_ranks_and_device_are_read_and_unknown_keys_are_told() -> None:
    config = {"num_processes": 4, "use_cpu": True, "machine_rank": 1, "fsdp_config": {"qqq": 1}, "fp8": None}
    translated = from_accelerate(config, Path())
    assert translated.document["run"] == {"device": "cpu", "world_size": 4}
    assert [str(note) for note in translated.notes if note.effect == "training"] == [
        "fsdp_config.fsdp_qqq: no key of accelerate, which refuses it"
    ]
    assert from_accelerate({"num_processes": 1}, Path()).document["run"] == {"world_size": 1}
    assert from_accelerate({"num_processes": 0}, Path()).document["run"] == {}


def test_arguments_that_are_not_given_are_the_trainers_defaults() -> None:
    rest = {"eps": 1e-8, "betas": [0.9, 0.999]}
    assert from_training_args({}, Path()).document == {
        "name": "trainer",
        "workload": {"micro_batch_size": 8},
        "run": {"seed": 42},
        "engine": {
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "optimizer": {"name": "adamw", "lr": 5e-5, "weight_decay": 0.0} | rest,
        },
    }


def test_arguments_that_are_given_are_taken_over() -> None:
    arguments = {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_grad_norm": 0.25, "seed": 7,
        "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "learning_rate": 1e-3, "use_cpu": True,
        "weight_decay": 0.1, "gradient_checkpointing": True, "bf16": True, "optim": "adamw_torch",
    }  # fmt: skip
    translated = from_training_args(arguments, Path())
    assert translated.notes == []
    assert translated.document["run"] == {"device": "cpu", "seed": 7}
    assert translated.document["workload"] == {"micro_batch_size": 2, "activation_checkpointing": True}
    assert translated.document["engine"] == {
        "gradient_accumulation_steps": 3, "gradient_clipping": 0.25, "dtype": "bfloat16",
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "eps": 1e-6, "betas": [0.8, 0.95]},
    }  # fmt: skip
    assert from_training_args({"fp16": True}, Path()).document["engine"]["dtype"] == "float16"


def test_the_trainers_deepspeed_configuration_is_filled_from_its_arguments(tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto", "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    for deepspeed in (config, "ds.json"):
        arguments = {"deepspeed": deepspeed, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
        engine = from_training_args(arguments, tmp_path).document["engine"]
        assert (engine["zero_stage"], engine["dtype"]) == (2, "bfloat16")
        assert (engine["gradient_clipping"], engine["gradient_accumulation_steps"]) == (0.5, 2)


def test_of_deepspeeds_optimizer_what_is_written_counts_and_auto_is_the_trainers() -> None:
    params = {"lr": "auto", "weight_decay": "auto", "betas": [0.8, 0.9], "amsgrad": True}
    config = {"zero_optimization": {"stage": 1}, "optimizer": {"type": "Adam", "params": params}}
    arguments = {"deepspeed": config, "learning_rate": 0.5, "weight_decay": 0.25}
    adam = from_training_args(arguments, Path()).document["engine"]["optimizer"]
    expected = {"lr": 0.5, "weight_decay": 0.25, "eps": 1e-8, "betas": [0.8, 0.9], "amsgrad": True}
    assert adam == {"name": "adamw"} | expected


def test_what_does_not_map_is_told() -> None:
    translated = from_training_args({"optim": "sgd", "report_to": "none", "num_train_epochs": 3}, Path())
    assert [(note.effect, note.text) for note in translated.notes] == [
        ("training", "optim: sgd: zbench has Adam and AdamW; AdamW stands in for it"),
        ("rest", "report_to"),
        ("rest", "num_train_epochs"),
    ]


@pytest.mark.parametrize("config", [{"model_type": "t5"}, {"model_type": "bart", "is_encoder_decoder": True}])
def test_an_encoder_decoder_model_is_refused_with_the_way(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)
    with pytest.raises(UsageError, match="needs inputs for both parts; write a module with the model"):
        around(tmp_path, config)
