"""Exports a trial to other training stacks: DeepSpeed, accelerate, FSDP2 and the transformers Trainer.

Each target returns the text of one file and a note for each setting that the file cannot express. The target
computes what depends on the number of ranks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from ruamel.yaml.scalarstring import SingleQuotedScalarString  # YAML 1.1 reads a bare `no` as false

from zbench.spec.deepspeed import CARRIED, left_out, script_notes, to_deepspeed
from zbench.spec.document import dump_yaml
from zbench.spec.engine import EngineSpec
from zbench.spec.trial import TrialSpec

_MIXED = {"float32": SingleQuotedScalarString("no"), "bfloat16": "bf16", "float16": "fp16"}
_ADAM = frozenset(f"optimizer.{key}" for key in ("name", "lr", "betas", "eps", "weight_decay"))
_OF_THE_SCRIPT = "must be set in the training script (Accelerator, clip_grad_norm_)"
_IN_DEEPSPEEDS_FILE = "not a key of accelerate's file; use --to deepspeed as deepspeed_config_file"


@dataclass(frozen=True, slots=True)
class Exported:
    """The text of a target's file, and notes on what it leaves out."""

    text: str
    notes: list[str]


def deepspeed(trial: TrialSpec) -> Exported:
    """Return a ds_config.json."""
    translated = to_deepspeed(trial)
    return Exported(json.dumps(translated.document, indent=2), translated.notes)


def accelerate(trial: TrialSpec) -> Exported:
    """Return the file of `accelerate launch --config_file FILE --num_processes N`."""
    engine = trial.engine
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "mixed_precision": _MIXED[engine.dtype],
        "use_cpu": trial.run.device == "cpu",
        "debug": False,
    }
    if engine.engine == "fsdp2":
        document |= _fsdp_section(trial)
    elif engine.zero_stage == 0:
        document["distributed_type"] = "MULTI_CPU" if document["use_cpu"] else "MULTI_GPU"
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
    notes = []
    if document["use_cpu"]:  # measured with accelerate 1.15
        kind = document["distributed_type"]
        plain = "" if kind == "MULTI_CPU" else f"; on CPUs accelerate ignores {kind} and trains plain DDP"
        notes.append(
            "run.device: `accelerate launch` starts one process on CPUs; ACCELERATE_USE_CPU=true torchrun"
            f" --nproc-per-node N starts several{plain}"
        )
    carried = {"zero_stage", "dtype", *_ADAM}
    counts = ("gradient_accumulation_steps", "gradient_clipping")
    if document["distributed_type"] == "DEEPSPEED":
        carried |= {"offload_optimizer", "offload_param", "grad_accum_dtype", *counts}
        why = dict.fromkeys(CARRIED, _IN_DEEPSPEEDS_FILE)
        if engine.grad_accum_dtype != engine.dtype:
            notes.append(f"engine.grad_accum_dtype: {engine.grad_accum_dtype} is {_IN_DEEPSPEEDS_FILE}")
    else:
        why = {key: f"{getattr(engine, key)} {_OF_THE_SCRIPT}" for key in counts}
        if engine.engine == "fsdp2":
            carried |= _fsdp_carried(engine)
    o, batch = engine.optimizer, trial.workload.micro_batch_size
    notes += [
        f"engine.optimizer: the training script creates it ({o.name}, lr {o.lr}, betas {list(o.betas)},"
        f" eps {o.eps}, weight_decay {o.weight_decay})",
        f"workload.micro_batch_size: {batch} per rank must be set in the training script",
        *left_out(engine, "accelerate", carried, why | {"param_groups": "the training script makes them"}),
    ]
    return Exported(dump_yaml(document).rstrip("\n"), [*notes, *script_notes(trial)])


def _fsdp_section(trial: TrialSpec) -> dict[str, Any]:
    """Return accelerate's keys of FSDP2, with its mesh where ranks share shards in groups."""
    engine = trial.engine
    section: dict[str, Any] = {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": engine.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_offload_params": engine.offload_param == "cpu",
            "fsdp_activation_checkpointing": trial.workload.activation_checkpointing is not False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    if engine.shard_group_size is not None:
        section["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": trial.run.world_size // engine.shard_group_size,
            "parallelism_config_dp_shard_size": engine.shard_group_size,
        }
    return section


def _fsdp_carried(engine: EngineSpec) -> set[str]:
    """Return the engine keys that an FSDP section has: it reduces in the dtype of computation."""
    reduced = engine.communication_dtype or engine.grad_accum_dtype
    same = {"communication_dtype"} if reduced == engine.dtype else set()
    both = (
        {"offload_optimizer", "offload_param"} if engine.offload_optimizer == engine.offload_param else set()
    )
    return {"shard_group_size", *same, *both}


_IN_FSDP2_CODE = _ADAM | {
    "zero_stage", "offload_optimizer", "offload_param", "dtype", "communication_dtype", "reduce_at",
    "gradient_accumulation_steps", "gradient_clipping", "shard_group_size", "optimizer.amsgrad",
}  # fmt: skip


def fsdp2(trial: TrialSpec) -> Exported:
    """Return Python code that shards a model with `fully_shard`, makes its optimizer and runs a step."""
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
    why = {
        "grad_accum_dtype": "FSDP2 accumulates in the parameters' dtype; left out",
        "optimizer.bias_correction": "torch's Adam always corrects the bias; left out",
        "param_groups": "add parameter groups in make_optimizer of this file; left out",
    }
    notes += left_out(engine, "FSDP2", _IN_FSDP2_CODE, why)
    return Exported(fsdp2_code(trial), [*notes, *script_notes(trial)])


def hf_trainer(trial: TrialSpec) -> Exported:
    """Return a training_args.json for `HfArgumentParser.parse_json_file` and `TrainingArguments`."""
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
        "gradient_checkpointing": trial.workload.activation_checkpointing is not False,
        "bf16": engine.dtype == "bfloat16",
        "fp16": engine.dtype == "float16",
        "use_cpu": trial.run.device == "cpu",
        "seed": trial.run.seed,
    }
    notes: list[str] = []
    if engine.engine == "fsdp2":
        offloaded = " offload" if engine.offload_param == "cpu" else ""
        document["fsdp"] = f"full_shard auto_wrap{offloaded}"
        document["fsdp_config"] = {"version": 2, "reshard_after_forward": engine.zero_stage == 3}
    elif engine.zero_stage > 0:
        translated = to_deepspeed(trial)
        document["deepspeed"] = translated.document
        notes += translated.notes
    if "deepspeed" not in document:
        carried = _ADAM - {"optimizer.name"} | {"zero_stage", "dtype", "gradient_accumulation_steps"}
        why = {
            "optimizer.name": "the Trainer has no Adam; pass optimizers=(torch.optim.Adam(...), None)",
            "param_groups": "the training script makes them; left out",
        }
        notes += left_out(engine, "the Trainer", carried | {"gradient_clipping"}, why)
        notes += script_notes(trial)
    notes = [n for n in notes if not n.startswith("workload.activation_checkpointing")]
    if trial.workload.activation_checkpointing == "selective":
        notes.append("workload.activation_checkpointing: the Trainer has no selective form; true is written")
    return Exported(json.dumps(document, indent=2), notes)


TARGETS: dict[str, Callable[[TrialSpec], Exported]] = {
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "fsdp2": fsdp2,
    "hf-trainer": hf_trainer,
}
"""Name on the command line -> function that makes the file."""


_MEASURED_BY = {
    "deepspeed": "set `engine: deepspeed` in the sweep file",
    "fsdp2": "set `engine: fsdp2` in the sweep file",
    "accelerate": "name your script as workload.command, with {accelerate_config}",
    "hf-trainer": "name your script as workload.command, with {training_args}",
}
"""Target -> how to measure the target itself."""


def measured_by(trial: TrialSpec, target: str) -> str:
    """Return which engine produced a trial's speed and verdict, and how to measure the target itself."""
    engine = trial.engine.engine
    if trial.workload.command is not None:
        return "The speed and verdict are those of the command that ran, workload.command."
    name = "zbench's own engine" if engine == "builtin" else engine
    if engine == target:
        return f"The speed and verdict were measured with {name}, run by zbench."
    remedy = f"to measure {target}, {_MEASURED_BY[target]}"
    return f"The speed and verdict are those of {name}, not of {target}; {remedy}."


_TEMPLATE = '''"""FSDP2 with the settings of zbench's trial {trial_id}: zero_stage {stage}, {dtype}.

{measured}
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import {imports}

MICRO_BATCH_SIZE = {micro_batch_size}
GRADIENT_ACCUMULATION_STEPS = {accumulation}


def shard(model: nn.Module, world_size: int, device_type: str = "cuda") -> nn.Module:
    """Shard a model's blocks (the entries of its ModuleLists), then the rest."""
    mesh = init_device_mesh(device_type, {mesh})
    options = {{"mesh": mesh, "reshard_after_forward": {reshard}}}
{options}    blocks = [block for m in model.modules() if isinstance(m, nn.ModuleList) for block in m]
    for block in blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Call after `shard`: the optimizer must see the sharded parameters. Parameter groups go here."""
    return torch.optim.{kind}(model.parameters(), {settings}, fused=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, losses) -> None:
    """One optimizer step. `losses`: an iterable that runs the forward of each micro-batch as it is asked."""
    for number, loss in enumerate(losses, 1):
        model.set_requires_gradient_sync({sync})
        (loss / GRADIENT_ACCUMULATION_STEPS).backward()
{clip}    optimizer.step()
    optimizer.zero_grad()
'''
FSDP2_BEGINS = _TEMPLATE.partition("{")[0]


def fsdp2_code(trial: TrialSpec) -> str:
    """Return Python code that runs a trial's configuration on FSDP2."""
    engine, optimizer = trial.engine, trial.engine.optimizer
    imports = ["fully_shard"]
    options = ""
    reduced = engine.communication_dtype or engine.grad_accum_dtype
    if {engine.dtype, reduced} != {"float32"}:
        imports.append("MixedPrecisionPolicy")
        policy = f"MixedPrecisionPolicy(param_dtype=torch.{engine.dtype}, reduce_dtype=torch.{reduced})"
        options += f'    options["mp_policy"] = {policy}\n'
    if "cpu" in (engine.offload_optimizer, engine.offload_param):
        imports.append("CPUOffloadPolicy")
        options += '    if device_type != "cpu":  # FSDP2 offloads from an accelerator only\n'
        options += '        options["offload_policy"] = CPUOffloadPolicy()\n'
    arguments = ("lr", "betas", "eps", "weight_decay", "amsgrad")
    settings = ", ".join(f"{name}={getattr(optimizer, name)!r}" for name in arguments)
    mesh, group = "(world_size,)", engine.shard_group_size
    if group is not None:  # `fully_shard` replicates along the first of two dimensions
        mesh = f'(world_size // {group}, {group}), mesh_dim_names=("replicate", "shard")'
    limit = engine.gradient_clipping
    auto = engine.reduce_at == "auto" and engine.zero_stage >= 2
    each = auto or engine.reduce_at == "each_backward"
    return _TEMPLATE.format(
        trial_id=trial.trial_id,
        stage=engine.zero_stage,
        dtype=engine.dtype,
        measured=fill(measured_by(trial, "fsdp2"), 100),
        imports=", ".join(sorted(imports, key=str.lower)),
        micro_batch_size=trial.workload.micro_batch_size,
        accumulation=engine.gradient_accumulation_steps,
        mesh=mesh,
        reshard=engine.zero_stage == 3,
        options=options,
        kind="AdamW" if optimizer.name == "adamw" else "Adam",
        settings=settings,
        sync="True" if each else "number == GRADIENT_ACCUMULATION_STEPS",
        clip=f"    nn.utils.clip_grad_norm_(model.parameters(), {limit!r})\n" if limit else "",
    ).rstrip("\n")
