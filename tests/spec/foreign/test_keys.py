"""Each key of another tool has an equal here or a reason; each value is read as that tool reads it."""

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.making import make_trial
from zbench.errors import UsageError
from zbench.spec import targets
from zbench.spec.expand import expand
from zbench.spec.foreign.accelerate import from_accelerate
from zbench.spec.foreign.deepspeed import KNOWN, from_deepspeed
from zbench.spec.foreign.reading import Imported, Table
from zbench.spec.foreign.recognition import known_tool
from zbench.spec.foreign.trainer import from_training_args
from zbench.spec.keys import resolve_key
from zbench.spec.load import load_sweep, sweep_from_mapping
from zbench.spec.starting import starting_sweep


def started(data: Any, place: Path, name: str = "given.json") -> Imported:
    file = place / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return starting_sweep(str(file), place)


def engine_of(config: dict[str, Any]) -> dict[str, Any]:
    engine: dict[str, Any] = from_deepspeed(config).document["engine"]
    return engine


def noted(imported: Imported, effect: str) -> list[str]:
    return [note.text for note in imported.notes if note.effect == effect]


def zero(**keys: Any) -> dict[str, Any]:
    return {"gradient_clipping": 1.0, "zero_optimization": keys}


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        ({"bf16": {"enabled": "false"}}, "dtype", "float32"),
        ({"bf16": {"enabled": "True"}}, "dtype", "bfloat16"),
        ({"bfloat16": {"enabled": True}}, "dtype", "bfloat16"),
        ({"gradient_accumulation_steps": "4"}, "gradient_accumulation_steps", 4),
        ({"gradient_clipping": "0.5"}, "gradient_clipping", 0.5),
        ({"gradient_accumulation_steps": 2.0}, "gradient_accumulation_steps", 2),
        (zero(stage="3"), "overlap_comm", True),
        (zero(stage="2"), "overlap_comm", False),
        (zero(stage=2, overlap_comm="true"), "overlap_comm", True),
        (zero(stage=3, reduce_bucket_size="5e6"), "reduce_bucket_size", 5_000_000),
        (zero(stage=3, param_persistence_threshold=0), "param_persistence_threshold", 0),
        (zero(stage=3, prefetch_bucket_size=7), "prefetch_bucket_size", 7),
        (zero(stage=3, cpu_offload=True), "offload_optimizer", "cpu"),
        (zero(stage=3, cpu_offload=True, cpu_offload_param=True), "offload_param", "cpu"),
        (zero(stage=3, mics_shard_size=2), "shard_group_size", 2),
        (zero(stage=3, leaf_module={"classes": ["a.b.Experts"]}), "leaf_modules", ("Experts",)),
        ({"zero_optimization": True}, "zero_stage", 1),
        ({"fp16": {"enabled": True, "initial_scale_power": [16]}}, "initial_loss_scale", 65536.0),
        ({"communication_data_type": ["bf16"]}, "communication_dtype", "bfloat16"),
        (zero(stage=3, offload_param={"device": "nvme"}), "offload_param", "cpu"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "optimizer", {"name": "adam",
        "weight_decay": 0.0}),
    ],
)  # fmt: skip
def test_a_value_is_read_as_deepspeed_reads_it(config: dict[str, Any], key: str, value: Any) -> None:
    assert engine_of(config)[key] == value


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bf16": {"enabled": "maybe"}}, "bf16.enabled: expected true or false, got 'maybe'"),
        ({"bf16": True}, "bf16: expected a block of keys, got true"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "keep one"),
        (zero(stage="three"), "zero_optimization.stage: expected a number, got 'three'"),
        (zero(stage=7), "zero_optimization.stage: expected 0, 1, 2 or 3, got 7"),
        (zero(stage=2, reduce_bucket_size="big"), "zero_optimization.reduce_bucket_size: expected"),
        ({"optimizer": {"params": {"betas": [0.9]}}}, "optimizer.params.betas: "),
        ({"communication_data_type": "int8"}, "communication_data_type: expected fp32, bf16 or fp16"),
        (
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
            "train_batch_size: 7 is not a multiple",
        ),
        ({"gradient_clipping": float("inf")}, "gradient_clipping: expected a finite number"),
    ],
)
def test_a_value_that_deepspeed_would_not_read_is_refused_with_its_key(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        from_deepspeed(config)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("config", "effect", "note"),
    [
        (
            zero(stage=3, stage3_prefetch_buket_size=1),
            "speed",
            "did you mean zero_optimization.stage3_prefetch_bucket_size?",
        ),
        (
            {"offload_optimizer": {"device": "cpu"}},
            "speed",
            "move it to zero_optimization.offload_optimizer.device",
        ),
        ({"gradient_cliping": 1}, "training", "did you mean gradient_clipping?"),
        (
            zero(stage=3, offload_param={"device": "nvme"}),
            "speed",
            "does not offload to NVMe; cpu is written",
        ),
        (zero(stage=2, offload_param={"device": "cpu"}), "speed", "DeepSpeed reads it at stage 3 only"),
        (
            zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.9}),
            "speed",
            "offload_optimizer.ratio: ",
        ),
        ({"optimizer": {"type": "OneBitAdam"}}, "training", "AdamW stands in for 'OneBitAdam'"),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "training", "128 is constant in DeepSpeed"),
        ({"scheduler": {"type": "WarmupLR"}}, "training", "zbench keeps the learning rate constant"),
        ({"amp": {"enabled": True}}, "training", "zbench has no Apex"),
        ({"bf16": {"enabled": "auto"}}, "training", "engine.dtype: float32, because bf16.enabled is auto"),
        ({"steps_per_print": 10, "bf16": {}}, "rest", "steps_per_print"),
        ({"amp": {"enabled": False, "opt_level": "O1"}}, "rest", "amp"),
    ],
)
def test_whatever_has_no_equal_is_named_with_what_its_loss_changes(
    config: dict[str, Any], effect: str, note: str
) -> None:
    imported = from_deepspeed({"dump_state": True} | config)
    assert any(note in text for text in noted(imported, effect)), imported.notes


@pytest.mark.parametrize("key", KNOWN)
def test_no_key_of_deepspeed_vanishes_and_none_is_called_unknown(key: str) -> None:
    value: Any = {"type": "x"} if key in ("scheduler", "amp") else [1, 2]
    config: dict[str, Any] = {}
    block = config
    for part in key.split(".")[:-1]:
        block = block.setdefault(part, {})
    block[key.rpartition(".")[2]] = value
    leaf = key.rpartition(".")[2]
    other = "memory_breakdown" if key == "dump_state" else "dump_state"
    refused = ""
    imported = Imported()
    try:
        imported = from_deepspeed({other: True} | config)
    except UsageError as error:
        refused = str(error)
    texts = [note.text for note in imported.notes if note.text != other]
    named = any(leaf in text or text.partition(":")[0] in key for text in texts)
    assert leaf in refused or imported.document.get("axes") or named, texts
    assert not any("no key of" in text for text in texts)


@pytest.mark.parametrize("tool", ["deepspeed", "trainer", "accelerate"])
def test_a_table_names_keys_that_exist_and_none_twice(tool: str) -> None:
    table = Table.of(tool)
    for ours in table.plain.values():
        resolve_key(ours)
    effects = [*table.written.get("training", {}), *table.written.get("speed", {}), *table.written["rest"]]
    names = [*table.plain, *table.read, *effects]
    assert sorted(names) == sorted(set(names))


def test_auto_is_what_the_trainer_fills_in(tmp_path: Path) -> None:
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    config = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3} | dict.fromkeys(names, "auto")}
    arguments = {"bf16": True, "deepspeed": config, "model_name_or_path": "llama-3-8b", "max_grad_norm": 0.5}
    engine = from_training_args(arguments, tmp_path).document["engine"]
    sizes = [engine[name.removeprefix("stage3_")] for name in names]
    assert sizes == [4096**2, int(0.9 * 4096**2), 40960]
    assert (engine["dtype"], engine["grad_accum_dtype"], engine["gradient_clipping"]) == (
        "bfloat16",
        "bfloat16",
        0.5,
    )
    plain = from_training_args({"bf16": True, "deepspeed": {"zero_optimization": {"stage": 2}}}, tmp_path)
    assert plain.document["engine"]["grad_accum_dtype"] == "bfloat16"


def test_an_auto_without_the_trainers_arguments_says_what_is_written() -> None:
    config = zero(stage=3, reduce_bucket_size="auto") | {
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
    }
    imported = from_deepspeed(config)
    assert imported.notes[0].text.startswith("engine.dtype: float32"), "the loudest first"
    assert "reduce_bucket_size" not in imported.document["engine"]
    (size,) = noted(imported, "speed")
    assert "keeps zbench's default, 5,000,000" in size
    assert "gradient_clipping: auto is the Trainer's; its default, 1.0, is written" in noted(
        imported, "training"
    )
    assert not any("if it is missing" in text for text in noted(imported, "training"))


def test_lists_of_the_autotuner_are_axes(tmp_path: Path) -> None:
    sizes = {"reduce_bucket_size": [5e7, "5e8"], "overlap_comm": [True, False]}
    document = started(zero(stage=[2, 3], **sizes), tmp_path).document
    axes = {key.rpartition(".")[2]: values for key, values in document["axes"].items()}
    assert axes["zero_stage"] == [2, 3]
    assert axes["reduce_bucket_size"] == [50_000_000, 500_000_000]
    assert axes["overlap_comm"] == [True, False]
    dtypes = started({"bf16": {"enabled": [True, False]}}, tmp_path).document["axes"]
    assert dtypes["dtype"] == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("config", "engine", "workload"),
    [
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": True}, {"zero_stage": 3}, {}),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": "false"}, {"zero_stage": 2}, {}),
        ({"fsdp_sharding_strategy": 2}, {"zero_stage": 2}, {}),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {"zero_stage": 2}, {}),
        ({"fsdp_sharding_strategy": "NO_SHARD"}, {"engine": "ddp", "zero_stage": 0}, {}),
        ({"fsdp_sharding_strategy": "HYBRID_SHARD"}, {"zero_stage": 3, "shard_group_size": 4}, {}),
        ({"fsdp_offload_params": True}, {"offload_param": "cpu", "offload_optimizer": "cpu"}, {}),
        ({"fsdp_activation_checkpointing": True}, {}, {"activation_checkpointing": True}),
    ],
)
def test_accelerates_fsdp_is_the_engine_fsdp2(
    config: dict[str, Any], engine: dict[str, Any], workload: dict[str, Any]
) -> None:
    arguments = {"distributed_type": "FSDP", "fsdp_config": config, "num_processes": 8, "num_machines": 2}
    document = from_accelerate(arguments, Path()).document
    assert document["engine"] | {"engine": "fsdp2"} | engine == document["engine"] | engine | {
        "engine": engine.get("engine", "fsdp2")
    }
    assert {**document["engine"], **engine} == document["engine"]
    assert document["workload"] == workload


def test_the_trainers_fsdp_is_the_engine_fsdp2() -> None:
    arguments = {"fsdp": "shard_grad_op auto_wrap offload", "fsdp_config": {"version": 2}, "bf16": True}
    engine = from_training_args(arguments, Path()).document["engine"]
    assert (engine["engine"], engine["zero_stage"], engine["offload_param"]) == ("fsdp2", 2, "cpu")
    assert engine["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "engine",
    [
        {"zero_stage": 3}, {"zero_stage": 2},
        {"zero_stage": 3, "offload_param": "cpu", "offload_optimizer": "cpu"},
        {"zero_stage": 3, "dtype": "bfloat16", "communication_dtype": "bfloat16"},
        {"zero_stage": 2, "shard_group_size": 2},
    ],
)  # fmt: skip
def test_an_export_of_fsdp2_comes_back(engine: dict[str, Any]) -> None:
    checkpointing = {"activation_checkpointing": True}
    trial = make_trial({"engine": "fsdp2"} | engine, workload=checkpointing, world_size=4, device="cuda")
    exported = targets.accelerate(trial)
    back = from_accelerate(YAML(typ="safe").load(exported.text) | {"num_processes": 4}, Path()).document
    assert back["engine"] == {"engine": "fsdp2"} | engine
    assert back["workload"] == checkpointing


def test_a_sweep_of_init_has_no_invalid_row(tmp_path: Path) -> None:
    offload = {"device": "cpu", "ratio": 0.5, "super_offload": True}
    for config in (
        zero(stage=3, offload_optimizer=offload), zero(stage=2, offload_optimizer=offload),
        zero(stage=3, mics_shard_size=2, leaf_module={"classes": ["E"]}),
        zero(stage=1) | {"compile": {"deepcompile": True}},
        zero(stage=[1, 3], offload_param={"device": ["none", "cpu"]}),
        {"train_batch_size": 64, "gradient_accumulation_steps": 2},
    ):  # fmt: skip
        document = started(config, tmp_path).document
        sweep = sweep_from_mapping(document, environ={})
        assert expand(sweep).trials
        assert expand(sweep).invalid == [], config


def test_another_tools_file_in_place_of_a_sweep_names_the_command_that_converts_it(tmp_path: Path) -> None:
    files = {
        "ds.json": ('{"bf16": {"enabled": true,}, // yes\n}', "is a file of DeepSpeed"),
        "a.yaml": ("distributed_type: FSDP", "is a file of accelerate"),
        "f.yaml": ("fsdp_version: 2", "is a file of accelerate"),
        "args.json": ('{"output_dir": "o"}', "is a file of the Trainer"),
        "m.json": ('{"model_type": "gpt2"}', "configures a model"),
        "other.yaml": ("finetuning_type: lora", "is a file of LLaMA-Factory"),
    }
    for name, (text, what) in files.items():
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(UsageError) as error:
            load_sweep(file, (), {})
        converted = f"convert it with `zbench init sweep.yaml --from {file}`"
        assert str(error.value) == f"{file}: this {what}, no sweep; {converted}"


@pytest.mark.parametrize("mark", ["workload", "axes", "schema_version"])
def test_a_sweep_is_no_other_tools_whatever_else_it_has(mark: str) -> None:
    assert known_tool({"distributed_type": "FSDP"}) == "accelerate"
    assert known_tool({"distributed_type": "FSDP", mark: {}}) is None
    assert known_tool(["distributed_type", mark]) is None


REAL: list[dict[str, Any]] = [
    {
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0, "bf16": {"enabled": True}, "fp16": {"enabled": False, "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8}},
        "zero_optimization": {
            "stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8, "stage3_max_live_parameters": 1e9,
            "offload_optimizer": {"device": "cpu", "pin_memory": True}, "offload_param": {"device": "none"},
        },
    },
    {
        "distributed_type": "DEEPSPEED", "num_processes": 4, "mixed_precision": "bf16", "machine_rank": 0,
        "deepspeed_config": {"zero_stage": 2, "gradient_clipping": 1.0, "offload_optimizer_device": "none"},
    },
    {
        "distributed_type": "FSDP", "num_processes": 4, "num_machines": 1,
        "fsdp_config": {"fsdp_version": 2, "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_offload_params": False},
    },
    {
        "output_dir": "o", "per_device_train_batch_size": 2, "learning_rate": 2e-5, "bf16": True,
        "optim": "adamw_torch",
        "max_grad_norm": 1.0, "gradient_checkpointing": True,
        "deepspeed": {"zero_optimization": {"stage": 2}},
    },
]  # fmt: skip
ODD = [
    None,
    "",
    "auto",
    "false",
    "2",
    "two",
    "nvme",
    True,
    -1,
    0,
    1.5,
    1e400,
    10**30,
    [],
    [1, 2],
    ["auto"],
    {},
    {"x": 1},
]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        [each for key, one in value.items() for each in paths_of(one, (*path, key))]
        if isinstance(value, dict)
        else []
    )
    return [path, *inner] if path else inner


def test_a_list_in_a_list_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"zero_stage: expected a value or a list of values, got \[2, \[1\]\]"
    ):
        started({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": [2, [1]]}}, tmp_path)


@given(st.sampled_from(REAL), st.integers(0, 2**32))
def test_a_file_with_any_change_becomes_a_sweep_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    changed = copy.deepcopy(config)
    for _ in range(draw.randint(1, 3)):
        *parents, key = draw.choice(paths_of(changed))
        block = changed
        for parent in parents:
            block = block[parent]
        action = draw.randrange(4)
        if action == 0:
            block[key] = draw.choice(ODD)
        elif action == 1:
            block[f"{key}s"] = block.pop(key)
        elif action == 2:
            changed[key] = block.pop(key)
        else:
            block[key] = [block[key], draw.choice(ODD)]
    document = {}
    with contextlib.suppress(UsageError):  # any other error is a fault
        document = started(changed, tmp_path_factory.getbasetemp()).document
    assert not document or expand(sweep_from_mapping(document, environ={})).invalid == []
