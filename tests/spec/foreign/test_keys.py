"""Each key of another tool has an equal here or a reason; each value is read as that tool reads it."""

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.making import make_trial
from zbench.errors import UsageError
from zbench.spec import targets
from zbench.spec.expand import expand
from zbench.spec.foreign.accelerate import from_accelerate
from zbench.spec.foreign.deepspeed import KNOWN, from_deepspeed
from zbench.spec.foreign.reading import Imported
from zbench.spec.load import load_sweep, sweep_from_mapping
from zbench.spec.starting import starting_sweep


def started(data: Any, place: Path, name: str = "given.json") -> Imported:
    file = place / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return starting_sweep(str(file), place)


def zero(**keys: Any) -> dict[str, Any]:
    return {"gradient_clipping": 1.0, "zero_optimization": keys}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bf16": {"enabled": "maybe"}}, "bf16.enabled: expected true or false, got 'maybe'"),
        ({"bf16": True}, "bf16: expected a block of keys, got true"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "keep one"),
        (zero(stage="three"), "zero_optimization.stage: expected a number, got 'three'"),
        ({"optimizer": {"params": {"betas": [0.9]}}}, "optimizer.params.betas: "),
        (
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
            "train_batch_size: 7 is not a multiple",
        ),
    ],
)
def test_a_value_that_deepspeed_refuses_is_refused_with_its_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        from_deepspeed(config)
    assert message in str(error.value)


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


@pytest.mark.parametrize(
    "engine",
    [
        {"zero_stage": 3},
        {"zero_stage": 3, "offload_param": "cpu", "offload_optimizer": "cpu"},
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


def test_another_tools_file_is_refused_with_the_converting_command(tmp_path: Path) -> None:
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
    None, "", "auto", "false", "2", "two", "nvme", True, -1, 0, 1.5, 1e400, 10**30, [], [1, 2], ["auto"], {},
    {"x": 1},
]  # fmt: skip


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        [each for key, one in value.items() for each in paths_of(one, (*path, key))]
        if isinstance(value, dict)
        else []
    )
    return [path, *inner] if path else inner


@settings(max_examples=50)
@given(st.sampled_from(REAL), st.integers(0, 2**32))
def test_any_changed_file_becomes_a_sweep_or_is_refused(
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
