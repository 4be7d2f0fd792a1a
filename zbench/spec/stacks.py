"""accelerate's and the transformers Trainer's files to a sweep document. What does not map is a note.

Keys: https://huggingface.co/docs/accelerate/package_reference/cli and
https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.spec.deepspeed import Translated, from_deepspeed
from zbench.spec.document import read_document

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_ACCELERATE_DEEPSPEED = {
    "zero_stage": "zero_stage",
    "offload_optimizer_device": "offload_optimizer",
    "offload_param_device": "offload_param",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
_ACCELERATE = {  # read below, or of the launch alone
    "deepspeed_config", "fsdp_config", "mixed_precision", "num_processes", "use_cpu",
    "compute_environment", "debug", "distributed_type", "machine_rank", "num_machines", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function", "gpu_ids",
    "enable_cpu_affinity", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "downcast_bf16",
}  # fmt: skip
_STAGES = {
    "FULL_SHARD": 3, "1": 3, "TRUE": 3, "HYBRID_SHARD": 3, "4": 3,
    "SHARD_GRAD_OP": 2, "2": 2, "FALSE": 2, "HYBRID_SHARD_ZERO2": 2, "5": 2,
    "NO_SHARD": 0, "3": 0,
}  # fmt: skip
_FSDP_OF_THE_MODEL = {  # how modules are wrapped, loaded and saved: no training step depends on it
    "version", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "state_dict_type",
    "sync_module_states", "cpu_ram_efficient_loading", "use_orig_params", "backward_prefetch",
    "backward_prefetch_policy", "forward_prefetch", "limit_all_gathers",
}  # fmt: skip
_OPTIMIZER = {
    "learning_rate": "lr", "weight_decay": "weight_decay", "adam_epsilon": "eps",
}  # fmt: skip
_ARGUMENTS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "adam_beta1", "adam_beta2",
    "bf16", "fp16", "gradient_checkpointing", "seed", "deepspeed", "fsdp", "fsdp_config", "use_cpu", "optim",
    *_OPTIMIZER,
}  # fmt: skip


def from_accelerate(config: Mapping[str, Any], base_dir: Path) -> Translated:
    """Return the sweep document that a file of `accelerate config` means; paths in it begin at `base_dir`."""
    theirs = dict(config.get("deepspeed_config") or {})
    named = theirs.pop("deepspeed_config_file", None)
    found = from_deepspeed(read_document(base_dir / named).data) if named else Translated({})
    engine = dict(found.document.get("engine", {}))
    notes = list(found.notes)
    if not named and config.get("mixed_precision") in _DTYPES:
        engine["dtype"] = _DTYPES[config["mixed_precision"]]
        if theirs:
            engine["grad_accum_dtype"] = engine["dtype"]  # DeepSpeed's default
    for key, value in theirs.items():
        if key in _ACCELERATE_DEEPSPEED and value != "auto":
            engine[_ACCELERATE_DEEPSPEED[key]] = value
        elif key not in ("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher"):
            notes.append(f"deepspeed_config.{key}: {value!r} has no counterpart; left out")
    workload = dict(found.document.get("workload", {}))
    if config.get("distributed_type") == "FSDP":
        sharded = _from_fsdp(config.get("fsdp_config") or {})
        engine |= sharded.document["engine"]
        workload |= sharded.document["workload"]
        notes += sharded.notes
    run: dict[str, Any] = {"device": "cpu"} if config.get("use_cpu") else {}
    if int(config.get("num_processes") or 0) > 0:
        run["world_size"] = int(config["num_processes"])
    for key, value in config.items():
        if value and key not in _ACCELERATE:
            notes.append(f"{key}: {value!r} has no counterpart; left out")
    return Translated({"name": "accelerate", "workload": workload, "run": run, "engine": engine}, notes)


def _from_fsdp(config: Mapping[str, Any]) -> Translated:
    """Return engine and workload of an FSDP configuration, of accelerate's or the Trainer's spelling.

    Parameters that stay whole from forward to backward are stage 2.
    """
    keys = {str(key).removeprefix("fsdp_"): value for key, value in config.items()}
    strategy = str(keys.pop("reshard_after_forward", keys.pop("sharding_strategy", "true"))).upper()
    stage = _STAGES.get(strategy.removeprefix("_"))
    engine: dict[str, Any] = {"zero_stage": 3 if stage is None else stage}
    workload = {"activation_checkpointing": True} if keys.pop("activation_checkpointing", None) else {}
    notes = []
    if stage is None or "HYBRID" in strategy or strategy in ("4", "5"):
        notes.append(
            f"fsdp_config: {strategy.lower()} is read as zero_stage: {engine['zero_stage']}; where it"
            " replicates across hosts, set engine.shard_group_size to the ranks of one"
        )
    if keys.pop("offload_params", None):
        if stage == 3:
            engine |= {"offload_param": "cpu", "offload_optimizer": "cpu"}
        else:
            notes.append("fsdp_config.offload_params: only zero_stage 3 offloads parameters here; left out")
    for key, value in keys.items():
        if value and key not in _FSDP_OF_THE_MODEL:
            notes.append(f"fsdp_config.{key}: {value!r} has no counterpart; left out")
    return Translated({"engine": engine, "workload": workload}, notes)


def _fsdp_of_arguments(given: Mapping[str, Any], base_dir: Path) -> Translated:
    """Return engine and workload of the Trainer's `fsdp` and `fsdp_config`; nothing without the first."""
    asked = given.get("fsdp")
    words = str(asked or "").split()  # of `true`, too, which is a strategy of `_STAGES`
    if isinstance(asked, list | tuple):
        words = [str(word) for word in asked]
    if not words:
        return Translated({"engine": {}, "workload": {}})
    named = given.get("fsdp_config") or {}
    config = dict(named if isinstance(named, Mapping) else read_document(base_dir / str(named)).data)
    strategies = [word for word in words if word.upper() in _STAGES]
    defaults: dict[str, Any] = {"sharding_strategy": strategies[0]} if strategies else {}
    return _from_fsdp(defaults | ({"offload_params": True} if "offload" in words else {}) | config)


def _explicit(optimizer: Mapping[str, Any], written: Any) -> dict[str, Any]:
    """Return the keys of an optimizer that a DeepSpeed configuration says itself; `auto` is the Trainer's."""
    if not isinstance(written, Mapping):
        return {}
    said = {key for key, value in (written.get("params") or {}).items() if value != "auto"} | {"name"}
    return {key: value for key, value in optimizer.items() if key in said}


def from_training_args(arguments: Mapping[str, Any], base_dir: Path) -> Translated:
    """Return the sweep document that TrainingArguments mean, with the Trainer's own defaults."""
    given = dict(arguments)
    micro, steps = given.get("per_device_train_batch_size", 8), given.get("gradient_accumulation_steps", 1)
    clipping = given.get("max_grad_norm", 1.0)  # the Trainer clips unless told otherwise
    optimizer = {ours: given[theirs] for theirs, ours in _OPTIMIZER.items() if theirs in given}
    optimizer = {"name": "adamw", "lr": 5e-5, "weight_decay": 0.0} | optimizer
    optimizer["betas"] = [given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)]
    sharded = _fsdp_of_arguments(given, base_dir)
    engine: dict[str, Any] = sharded.document["engine"]
    workload: dict[str, Any] = {"micro_batch_size": micro} | sharded.document["workload"]
    notes = list(sharded.notes)
    config = given.get("deepspeed")
    if config:
        written = config if isinstance(config, Mapping) else read_document(base_dir / str(config)).data
        filled = {"gradient_accumulation_steps": steps, "gradient_clipping": clipping}
        found = from_deepspeed(filled | {k: v for k, v in dict(written).items() if v != "auto"})
        engine, notes = dict(found.document["engine"]), [*notes, *found.notes]
        optimizer |= _explicit(engine.pop("optimizer", {}), dict(written).get("optimizer"))
    engine |= {"gradient_accumulation_steps": steps, "gradient_clipping": clipping, "optimizer": optimizer}
    for flag, dtype in _DTYPES.items():
        if given.get(flag):
            engine["dtype"] = dtype
    if given.get("gradient_checkpointing"):
        workload["activation_checkpointing"] = True
    if not str(given.get("optim", "adamw")).startswith("adamw"):
        notes.append(f"optim: {given['optim']!r} has no counterpart; AdamW stands in for it")
    left = sorted(given.keys() - _ARGUMENTS)
    notes += [f"left out, having no counterpart here: {', '.join(left)}"] if left else []
    run = ({"device": "cpu"} if given.get("use_cpu") else {}) | {"seed": given.get("seed", 42)}
    return Translated({"name": "trainer", "workload": workload, "run": run, "engine": engine}, notes)
