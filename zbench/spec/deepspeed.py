"""Writes a trial as DeepSpeed's JSON configuration. Each setting that is left out gets a note.

`foreign/deepspeed.py` has the table of keys and reads such configurations.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zbench.spec.combinations import acts, differs
from zbench.spec.engine import SIZES, EngineSpec, OptimizerSpec
from zbench.spec.foreign.deepspeed import MANAGED, PLAIN, ZERO
from zbench.spec.keys import assign, value_at
from zbench.spec.trial import TrialSpec

_DTYPES_BACK = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
CARRIED = {ours.removeprefix("engine.") for ours in PLAIN.values()} | {
    "dtype", "grad_accum_dtype", "communication_dtype", "initial_loss_scale", "offload_schedule", "compile",
    "ds_config", "optimizer.name", "accumulation_mode",
}  # fmt: skip
"""Engine keys that `to_deepspeed` writes, or for which it has a note of its own."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A converted configuration, and a note for each setting that has no counterpart."""

    document: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the key at a dotted path, in place."""
    assign(document, tuple(path.split(".")), value)


def to_deepspeed(trial: TrialSpec) -> Translated:
    """Return the DeepSpeed configuration of a trial: its `ds_config`, or one that sets every key.

    It has no `train_batch_size`: DeepSpeed computes that from the number of ranks.
    """
    engine = trial.engine
    batch = {"train_micro_batch_size_per_gpu": trial.workload.micro_batch_size}
    if isinstance(engine.ds_config, dict):
        steps = {"gradient_accumulation_steps": engine.gradient_accumulation_steps}
        document = batch | engine.ds_config | steps
    else:
        document = batch | engine_configuration(engine, torch_adam=_is_torchs(trial))
    notes = []
    if _is_torchs(trial) and not engine.optimizer.bias_correction:
        why = "this needs torch's Adam, which always corrects the bias; left out"
        notes.append(f"engine.optimizer.bias_correction: {why}")
    if not _takes_accumulation_dtype(engine):
        notes.append(
            f"engine.grad_accum_dtype: DeepSpeed's stage 0 accumulates in {engine.dtype}; left out (stage 1"
            f" accumulates in {engine.grad_accum_dtype})"
        )
    if engine.accumulation_mode == "multi_backward":
        notes.append(
            "engine.accumulation_mode: multi_backward has no key in DeepSpeed; the training script must call"
            " set_gradient_accumulation_boundary before each backward"
        )
    if engine.accumulation_mode == "unmanaged" and engine.overlap_comm and engine.zero_stage < 2:
        notes.append(
            "engine.overlap_comm: without a known last backward DeepSpeed overlaps from stage 2 on only;"
            " false is written"
        )
    notes += left_out(engine, "DeepSpeed", CARRIED)
    if engine.offload_ratio != 1.0 and engine.zero_stage != 3:
        notes.append("engine.offload_ratio: DeepSpeed supports it at stage 3 only; left out")
    if engine.compile == "aot_eager":
        notes.append("engine.compile: aot_eager has no counterpart in DeepSpeed; deepcompile uses inductor")
    if engine.dtype == "float16" and not math.log2(engine.initial_loss_scale).is_integer():
        notes.append("engine.initial_loss_scale: DeepSpeed takes powers of two; rounded")
    return Translated(document, [*notes, *script_notes(trial)])


def engine_configuration(engine: EngineSpec, *, torch_adam: bool) -> dict[str, Any]:
    """Return the DeepSpeed configuration of an engine. It sets every key except the batch sizes.

    torch_adam: use torch's Adam. No clipping is written as 0, because DeepSpeed >= 0.19 clips at 1 by
    default. A missing size takes its default on a CPU.
    """
    settings = SIZES | engine.model_dump(mode="json", exclude_none=True)
    config = {"engine": {"allgather_bucket_size": settings["reduce_bucket_size"]} | settings}
    document: dict[str, Any] = {}
    for theirs, ours in PLAIN.items():
        if ours.startswith("engine.") and _applies(theirs, engine, torch_adam):
            put(document, theirs, value_at(config, tuple(ours.split("."))))
    document["optimizer"]["type"] = "AdamW" if engine.optimizer.name == "adamw" else "Adam"
    if engine.optimizer.name == "adam":
        document["optimizer"]["params"]["adam_w_mode"] = False
    if torch_adam:
        document["optimizer"]["params"]["torch_adam"] = True
        if engine.offload_optimizer != "none":
            document["zero_force_ds_cpu_optimizer"] = False  # let torch's Adam update on the CPU
    if engine.dtype == "bfloat16":
        document["bf16"] = {"enabled": True}
    if engine.dtype == "float16":
        document["fp16"] |= {
            "enabled": True,
            "initial_scale_power": round(math.log2(engine.initial_loss_scale)),
        }
    if _takes_accumulation_dtype(engine):
        document["data_types"] = {"grad_accum_dtype": _DTYPES_BACK[engine.grad_accum_dtype]}
    reduced = engine.communication_dtype or engine.grad_accum_dtype
    if engine.communication_dtype or (reduced != engine.dtype and _takes_accumulation_dtype(engine)):
        document["communication_data_type"] = _DTYPES_BACK[reduced]  # default: the model's dtype
    if engine.offload_schedule == "speculative":
        document["zero_optimization"]["offload_optimizer"]["super_offload"] = True
    if engine.accumulation_mode == "unmanaged":
        document[MANAGED] = False
        document["zero_optimization"]["overlap_comm"] &= engine.zero_stage >= 2  # else DeepSpeed refuses it
    if engine.compile != "off":
        document["compile"] = {"deepcompile": True}
    return document


def has_amsgrad(engine: EngineSpec) -> bool:
    """Return whether any parameter group uses AMSGrad, which DeepSpeed's own Adam does not support."""
    return engine.optimizer.amsgrad or any(group.amsgrad for group in engine.param_groups.values())


def _takes_accumulation_dtype(engine: EngineSpec) -> bool:
    """Return whether DeepSpeed supports grad_accum_dtype: stage 0 accumulates in the model's dtype only."""
    return engine.zero_stage > 0 or engine.grad_accum_dtype == engine.dtype


def _is_torchs(trial: TrialSpec) -> bool:
    """Return whether DeepSpeed uses torch's Adam: for AMSGrad, and on CPUs, where it needs no compiler."""
    engine = trial.engine
    return has_amsgrad(engine) or (trial.run.device == "cpu" and engine.offload_optimizer == "none")


def script_notes(trial: TrialSpec) -> Iterator[str]:
    """Yield a note for each setting that only the training script can apply."""
    workload, engine = trial.workload, trial.engine
    for name, value in workload.parameters.items():
        yield f"workload.parameters: {name} ({json.dumps(value)}) is the script's own; pass it to the script"
    if workload.backwards_per_step > 1:
        yield (
            f"workload.backwards_per_step: {workload.backwards_per_step} backwards before each step have no"
            " key in DeepSpeed; the training script must run them"
        )
    if workload.global_batch_size is not None:
        yield (
            f"workload.global_batch_size: {workload.global_batch_size} is for {trial.run.world_size} ranks;"
            f" for another number, change gradient_accumulation_steps ({engine.gradient_accumulation_steps})"
        )
    if workload.loss_weighting == "tokens":
        yield "workload.loss_weighting: tokens has no key; weight the losses in the training script; left out"
    if workload.activation_checkpointing:
        yield "workload.activation_checkpointing has no key; switch it on in the model; left out"
    if workload.offload_activations:
        yield "workload.offload_activations has no key; save tensors on the CPU in the script; left out"
    if workload.loss_chunks > 1:
        yield f"workload.loss_chunks: {workload.loss_chunks} has no key; the model computes it; left out"


def _applies(key: str, engine: EngineSpec, torch_adam: bool) -> bool:
    """Return whether DeepSpeed reads a key in this configuration."""
    if key == f"{ZERO}offload_optimizer.ratio":
        return engine.offload_optimizer != "none" and engine.zero_stage == 3
    if key.startswith(f"{ZERO}offload_optimizer"):
        return engine.offload_optimizer != "none"
    if key.startswith(f"{ZERO}offload_param"):
        return engine.offload_param != "none"
    if key.startswith(f"{ZERO}stage3"):
        return engine.zero_stage == 3
    if key == "optimizer.params.bias_correction":  # torch's Adam has no such argument
        return not engine.optimizer.bias_correction and not torch_adam
    if key == "optimizer.params.amsgrad":
        return engine.optimizer.amsgrad
    return engine.dtype == "float16" or not key.startswith("fp16")


_OF_SCRIPTS = {
    "build": "the training script builds the model, with zero.Init or on the meta device; left out"
}


def left_out(
    engine: EngineSpec, target: str, carried: Collection[str], why: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield a note for each key that differs from its default and that an export leaves out.

    carried: keys, such as `zero_stage` and `optimizer.lr`, that the export has or that have their own note.
    why: key -> its note, in place of "has no counterpart in `target`".
    """
    keys = [key for key in EngineSpec.model_fields if key not in ("engine", "engine_python", "optimizer")]
    for key in [*keys, *(f"optimizer.{key}" for key in OptimizerSpec.model_fields)]:
        path = ("engine", *key.split("."))
        if key not in carried and differs(engine, path) and acts(engine, path):
            reason = (_OF_SCRIPTS | dict(why or {})).get(key)
            other = f"engine.{key} has no counterpart in {target}; left out"
            yield f"engine.{key}: {reason}" if reason else other
