"""A trial as other training stacks take it: DeepSpeed, accelerate, FSDP2 and the transformers Trainer.

Each target yields the text of one file and a note for everything that it has no place for. What depends on
the number of ranks is left for the target to derive.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml.scalarstring import SingleQuotedScalarString  # YAML 1.1 reads a bare `no` as false

from zbench.spec.deepspeed import script_notes, to_deepspeed
from zbench.spec.dump import dump_yaml
from zbench.spec.engine import EngineSpec
from zbench.spec.fsdp2_code import fsdp2_code
from zbench.spec.trial import TrialSpec

_MIXED = {"float32": SingleQuotedScalarString("no"), "bfloat16": "bf16", "float16": "fp16"}
_BUILT_IN_ONLY = (
    "offload_schedule", "offload_ratio", "optimizer_threads", "rollback", "accumulation_mode", "reduce_at",
    "grad_accum_dtype", "communication_dtype", "compile", "leaf_modules", "buffer_dtype",
    "shard_group_size",
)  # fmt: skip
_SIZES = (
    "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size",
    "param_persistence_threshold", "overlap_comm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exported:
    """The text of a target's file, and what it leaves out."""

    text: str
    notes: list[str]


def deepspeed(trial: TrialSpec) -> Exported:
    """Return a ds_config.json."""
    found = to_deepspeed(trial)
    return Exported(json.dumps(found.document, indent=2), found.notes)


def accelerate(trial: TrialSpec) -> Exported:
    """Return the file of `accelerate launch --config_file FILE --num_processes N`."""
    engine = trial.engine
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "mixed_precision": _MIXED[engine.dtype],
        "use_cpu": trial.run.device == "cpu",
        "debug": False,
    }
    notes: list[str] = []
    if engine.engine == "fsdp2":
        document["distributed_type"] = "FSDP"
        document["fsdp_config"] = _fsdp_config()
        notes += _of_the_script(engine, "gradient_accumulation_steps", "gradient_clipping")
    elif engine.zero_stage == 0:
        document["distributed_type"] = "MULTI_CPU" if document["use_cpu"] else "MULTI_GPU"
        notes += _of_the_script(engine, "gradient_accumulation_steps", "gradient_clipping")
    else:
        document["distributed_type"] = "DEEPSPEED"
        document["deepspeed_config"] = {
            "zero_stage": engine.zero_stage,
            "offload_optimizer_device": engine.offload_optimizer,
            "offload_param_device": engine.offload_param,
            "gradient_accumulation_steps": engine.gradient_accumulation_steps,
            "gradient_clipping": engine.gradient_clipping,
            "zero3_init_flag": False,
            "zero3_save_16bit_model": engine.zero_stage == 3,
        }
        notes += _unsaid(engine, _SIZES, "accelerate's own file; use --to deepspeed as deepspeed_config_file")
    if document["use_cpu"]:
        notes.append(_on_cpus(document["distributed_type"]))
    notes += _optimizer_notes(engine)
    notes += _unsaid(engine, _BUILT_IN_ONLY, "accelerate")
    return Exported(dump_yaml(document).rstrip("\n"), [*notes, *script_notes(trial)])


def fsdp2(trial: TrialSpec) -> Exported:
    """Return Python code that shards a model with `fully_shard` and makes its optimizer."""
    engine = trial.engine
    notes = []
    if engine.zero_stage < 2:
        notes.append(
            "engine.zero_stage: FSDP2 shards gradients and optimizer state together;"
            f" stage {engine.zero_stage} becomes reshard_after_forward=False, which is stage 2"
        )
    if engine.offload_optimizer != engine.offload_param:
        notes.append("engine.offload_optimizer: FSDP2 offloads parameters, gradients and state, or nothing")
    if engine.dtype == "float16":
        notes.append("engine.dtype: float16 needs torch.amp.GradScaler in the training loop")
    if engine.grad_accum_dtype != "float32":
        notes.append("engine.grad_accum_dtype: FSDP2 accumulates in the parameters' dtype; left out")
    if not engine.optimizer.bias_correction:
        notes.append("engine.optimizer.bias_correction: torch's Adam always corrects; left out")
    carried = ("grad_accum_dtype", "communication_dtype", "shard_group_size")
    rest = tuple(k for k in _BUILT_IN_ONLY if k not in carried)
    notes += [*_unsaid(engine, (*_SIZES, *rest), "FSDP2"), *_moments_notes(engine)]
    if engine.param_groups:
        notes.append("engine.param_groups: make the optimizer's groups where the code says so; left out")
    return Exported(fsdp2_code(trial), [*notes, *script_notes(trial)])


def hf_trainer(trial: TrialSpec) -> Exported:
    """Return a training_args.json: what `HfArgumentParser.parse_json_file` and `TrainingArguments` take."""
    engine, optimizer = trial.engine, trial.engine.optimizer
    document: dict[str, Any] = {
        "output_dir": "output",
        "per_device_train_batch_size": trial.workload.micro_batch_size,
        "gradient_accumulation_steps": engine.gradient_accumulation_steps,
        "max_grad_norm": engine.gradient_clipping,
        "learning_rate": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": trial.workload.activation_checkpointing,
        "bf16": engine.dtype == "bfloat16",
        "fp16": engine.dtype == "float16",
        "use_cpu": trial.run.device == "cpu",
        "seed": trial.run.seed,
    }
    notes: list[str] = []
    if engine.engine == "fsdp2":
        document["fsdp"] = "full_shard auto_wrap"
        document["fsdp_config"] = {"version": 2, "reshard_after_forward": True}
    elif engine.zero_stage > 0:
        translated = to_deepspeed(trial)
        document["deepspeed"] = translated.document
        notes += translated.notes
    if "deepspeed" not in document:
        notes += [*_optimizer_notes(engine, carried=True), *_unsaid(engine, _BUILT_IN_ONLY, "the Trainer")]
        notes += list(script_notes(trial))
    notes = [n for n in notes if not n.startswith("workload.activation_checkpointing")]
    return Exported(json.dumps(document, indent=2), notes)


TARGETS: dict[str, Callable[[TrialSpec], Exported]] = {
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "fsdp2": fsdp2,
    "hf-trainer": hf_trainer,
}
"""Name on the command line -> how the file is made."""


def _on_cpus(kind: str) -> str:
    """Return what accelerate does with a file that says `use_cpu` (measured with 1.15)."""
    ranks = (
        "`accelerate launch` starts one process on CPUs; ACCELERATE_USE_CPU=true torchrun --nproc-per-node N"
        " starts several"
    )
    plain = "" if kind == "MULTI_CPU" else f"; on CPUs accelerate ignores {kind} and trains plain DDP"
    return f"run.device: {ranks}{plain}"


def _fsdp_config() -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _of_the_script(engine: EngineSpec, *keys: str) -> Iterator[str]:
    defaults = EngineSpec()
    for key in keys:
        value = getattr(engine, key)
        if value != getattr(defaults, key):
            yield f"engine.{key}: {value} is the training script's to set (Accelerator, clip_grad_norm_)"


def _optimizer_notes(engine: EngineSpec, *, carried: bool = False) -> Iterator[str]:
    """Yield what of the optimizer is left out; `carried`: its numbers are not."""
    optimizer = engine.optimizer
    if not carried:
        o = f"{optimizer.name}, lr {optimizer.lr}, betas {list(optimizer.betas)}, eps {optimizer.eps}"
        yield f"engine.optimizer: the training script makes it ({o}, weight_decay {optimizer.weight_decay})"
    elif optimizer.name == "adam":
        yield "engine.optimizer.name: the Trainer has no Adam; pass optimizers=(torch.optim.Adam(...), None)"
    if carried and (optimizer.amsgrad or not optimizer.bias_correction):
        yield "engine.optimizer: amsgrad and bias_correction have no counterpart in the Trainer; left out"
    if engine.param_groups:
        yield "engine.param_groups: the training script makes them; left out"
    yield from _moments_notes(engine)


def _moments_notes(engine: EngineSpec) -> Iterator[str]:
    defaults = EngineSpec().optimizer
    for key in ("moments_dtype", "moments_rounding"):
        if getattr(engine.optimizer, key) != getattr(defaults, key):
            yield f"engine.optimizer.{key} has no counterpart; left out"


def _unsaid(engine: EngineSpec, keys: tuple[str, ...], target: str) -> Iterator[str]:
    defaults = EngineSpec()
    for key in keys:
        if getattr(engine, key) != getattr(defaults, key):
            yield f"engine.{key} has no counterpart in {target}; left out"
