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
_OPTIMIZER = {
    "learning_rate": "lr", "weight_decay": "weight_decay", "adam_epsilon": "eps",
}  # fmt: skip
_ARGUMENTS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "adam_beta1", "adam_beta2",
    "bf16", "fp16", "gradient_checkpointing", "seed", "deepspeed", "use_cpu", "optim", *_OPTIMIZER,
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
    for key, value in theirs.items():
        if key in _ACCELERATE_DEEPSPEED and value != "auto":
            engine[_ACCELERATE_DEEPSPEED[key]] = value
        elif key not in ("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher"):
            notes.append(f"deepspeed_config.{key}: {value!r} has no counterpart; left out")
    if config.get("distributed_type") == "FSDP":
        engine |= _sharding(config.get("fsdp_config") or {})
    run: dict[str, Any] = {"device": "cpu"} if config.get("use_cpu") else {}
    if int(config.get("num_processes") or 0) > 0:
        run["world_size"] = int(config["num_processes"])
    for key, value in config.items():
        if value and key not in _ACCELERATE:
            notes.append(f"{key}: {value!r} has no counterpart; left out")
    workload = found.document.get("workload", {})
    return Translated({"name": "accelerate", "workload": workload, "run": run, "engine": engine}, notes)


def _sharding(fsdp: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stage that an FSDP configuration amounts to: parameters stay whole in forward at stage 2."""
    strategy = str(fsdp.get("fsdp_reshard_after_forward", fsdp.get("fsdp_sharding_strategy", "true"))).upper()
    whole = strategy in ("FALSE", "SHARD_GRAD_OP", "2")
    engine: dict[str, Any] = {"zero_stage": 0 if strategy in ("NO_SHARD", "3") else 2 if whole else 3}
    if fsdp.get("fsdp_offload_params") and engine["zero_stage"] == 3:
        engine |= {"offload_param": "cpu", "offload_optimizer": "cpu"}
    return engine


def from_training_args(arguments: Mapping[str, Any], base_dir: Path) -> Translated:
    """Return the sweep document that TrainingArguments mean, with the Trainer's own defaults."""
    given = dict(arguments)
    micro, steps = given.get("per_device_train_batch_size", 8), given.get("gradient_accumulation_steps", 1)
    clipping = given.get("max_grad_norm", 1.0)  # the Trainer clips unless told otherwise
    optimizer = {ours: given[theirs] for theirs, ours in _OPTIMIZER.items() if theirs in given}
    optimizer = {"name": "adamw", "lr": 5e-5, "weight_decay": 0.0} | optimizer
    optimizer["betas"] = [given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)]
    engine: dict[str, Any] = {}
    workload: dict[str, Any] = {"micro_batch_size": micro}
    notes: list[str] = []
    config = given.get("deepspeed")
    if config:
        written = config if isinstance(config, Mapping) else read_document(base_dir / str(config)).data
        filled = {"gradient_accumulation_steps": steps, "gradient_clipping": clipping}
        found = from_deepspeed(filled | {k: v for k, v in dict(written).items() if v != "auto"})
        engine, notes = dict(found.document["engine"]), list(found.notes)
        engine.pop("optimizer", None)
    engine |= {"gradient_accumulation_steps": steps, "gradient_clipping": clipping, "optimizer": optimizer}
    for flag, dtype in _DTYPES.items():
        if given.get(flag):
            engine["dtype"] = dtype
    if given.get("gradient_checkpointing"):
        workload["activation_checkpointing"] = True
    if not str(given.get("optim", "adamw")).startswith("adamw"):
        notes.append(f"optim: {given['optim']!r} has no counterpart; AdamW stands in for it")
    left = sorted(given.keys() - _ARGUMENTS)
    notes += [f"left out, since they change no training step here: {', '.join(left)}"] if left else []
    run = ({"device": "cpu"} if given.get("use_cpu") else {}) | {"seed": given.get("seed", 42)}
    return Translated({"name": "trainer", "workload": workload, "run": run, "engine": engine}, notes)
