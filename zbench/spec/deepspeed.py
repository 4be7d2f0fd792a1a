"""Converts DeepSpeed's JSON configuration to a sweep and back. Each setting that is left out gets a note.

Keys and defaults: https://www.deepspeed.ai/docs/config-json/. A key that is missing in the JSON takes
DeepSpeed's default where that differs from zbench's: see `_DEFAULTS`, `from_deepspeed` and `_precision`.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zbench.errors import UsageError
from zbench.spec.combinations import acts, differs
from zbench.spec.engine import SIZES, EngineSpec, OptimizerSpec
from zbench.spec.keys import assign, leaves, value_at
from zbench.spec.problems import shown
from zbench.spec.trial import TrialSpec

_ZERO = "zero_optimization."
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "bfp16": "bfloat16", "fp16": "float16"}
_DTYPES_BACK = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
PLAIN = {  # DeepSpeed's key -> zbench's key; both have the same value
    "gradient_accumulation_steps": "engine.gradient_accumulation_steps",
    "gradient_clipping": "engine.gradient_clipping",
    "train_micro_batch_size_per_gpu": "workload.micro_batch_size",
    f"{_ZERO}stage": "engine.zero_stage",
    f"{_ZERO}reduce_bucket_size": "engine.reduce_bucket_size",
    f"{_ZERO}allgather_bucket_size": "engine.allgather_bucket_size",
    f"{_ZERO}sub_group_size": "engine.sub_group_size",
    f"{_ZERO}stage3_prefetch_bucket_size": "engine.prefetch_bucket_size",
    f"{_ZERO}stage3_param_persistence_threshold": "engine.param_persistence_threshold",
    f"{_ZERO}overlap_comm": "engine.overlap_comm",
    f"{_ZERO}offload_optimizer.device": "engine.offload_optimizer",
    f"{_ZERO}offload_optimizer.ratio": "engine.offload_ratio",
    f"{_ZERO}offload_param.device": "engine.offload_param",
    "fp16.loss_scale_window": "engine.loss_scale_window",
    "optimizer.params.lr": "engine.optimizer.lr",
    "optimizer.params.betas": "engine.optimizer.betas",
    "optimizer.params.eps": "engine.optimizer.eps",
    "optimizer.params.weight_decay": "engine.optimizer.weight_decay",
    "optimizer.params.bias_correction": "engine.optimizer.bias_correction",
    "optimizer.params.amsgrad": "engine.optimizer.amsgrad",
}
_DEFAULTS = {
    f"{_ZERO}reduce_bucket_size": 500_000_000,
    f"{_ZERO}allgather_bucket_size": 500_000_000,
    f"{_ZERO}sub_group_size": 1_000_000_000,
    f"{_ZERO}stage3_prefetch_bucket_size": 50_000_000,
    f"{_ZERO}stage3_param_persistence_threshold": 100_000,
}
_FLAGS = {"fp16.enabled", "bf16.enabled", "train_batch_size", "optimizer.type"}
CARRIED = {ours.removeprefix("engine.") for ours in PLAIN.values()} | {
    "dtype", "grad_accum_dtype", "communication_dtype", "initial_loss_scale", "offload_schedule", "compile",
    "ds_config", "optimizer.name",
}  # fmt: skip
"""Engine keys that `to_deepspeed` writes, or for which it has a note of its own."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A converted configuration, and a note for each setting that has no counterpart."""

    document: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def from_deepspeed(config: object) -> Translated:
    """Return a DeepSpeed configuration as a sweep document. UsageError if it is not such a configuration."""
    if not isinstance(config, Mapping):
        raise UsageError(f"expected a DeepSpeed configuration, a mapping of keys; got {shown(config)}")
    given = dict(leaves(config))
    notes = [
        f"{key}: the training script fills in `auto`; zbench uses its default"
        for key in given
        if given[key] == "auto"
    ]
    given = {key: value for key, value in given.items() if value != "auto"}
    filled = dict(given)
    if given.get(f"{_ZERO}stage", 0):
        filled = _DEFAULTS | {f"{_ZERO}overlap_comm": given[f"{_ZERO}stage"] == 3} | filled
    if "optimizer.type" in given:
        filled = {"optimizer.params.weight_decay": 0.0} | filled
    if not any(key in PLAIN or key in _FLAGS for key in given):
        raise UsageError(
            "this is no DeepSpeed configuration: it has none of DeepSpeed's keys; name another file"
        )
    document: dict[str, Any] = {"name": "deepspeed"}
    used: set[str] = set()
    for key, value in filled.items():
        is_nvme = key.endswith(".device") and value not in ("none", "cpu")
        if key in PLAIN and not is_nvme:
            put(document, PLAIN[key], value)
            used.add(key)
    for rule in (_precision, _optimizer, _speculation, _batch):
        used |= rule(given, document)
    if "gradient_clipping" not in given:
        notes.append(
            "gradient_clipping: if it is missing, DeepSpeed from 0.19 on clips at 1.0, and zbench does not"
        )
    notes += [f"{key}: {shown(given[key])} has no counterpart; left out" for key in given if key not in used]
    return Translated(document, notes)


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the key at a dotted path, in place."""
    assign(document, tuple(path.split(".")), value)


def _precision(given: Mapping[str, Any], document: dict[str, Any]) -> set[str]:
    used = {"fp16.enabled", "bf16.enabled"}
    dtype = "bfloat16" if given.get("bf16.enabled") else "float16" if given.get("fp16.enabled") else "float32"
    put(document, "engine.dtype", dtype)
    stage = given.get(f"{_ZERO}stage", 0)
    if dtype == "float16" or (dtype == "bfloat16" and stage):  # DeepSpeed's default; float32 otherwise
        put(document, "engine.grad_accum_dtype", dtype)
    if "fp16.initial_scale_power" in given:
        put(document, "engine.initial_loss_scale", 2.0 ** float(given["fp16.initial_scale_power"]))
        used.add("fp16.initial_scale_power")
    for theirs, ours in (
        ("communication_data_type", "communication_dtype"),
        ("data_types.grad_accum_dtype", "grad_accum_dtype"),
    ):
        if given.get(theirs) in _DTYPES:
            put(document, f"engine.{ours}", _DTYPES[given[theirs]])
            used.add(theirs)
    engine = document["engine"]
    accumulated = engine.get("grad_accum_dtype", "float32")
    reduced = engine.pop("communication_dtype", dtype)  # zbench's is `accumulated`
    if reduced != accumulated:
        engine["communication_dtype"] = reduced
    return used


def _optimizer(given: Mapping[str, Any], document: dict[str, Any]) -> set[str]:
    """Read the optimizer's type. DeepSpeed's `Adam` decays weights as AdamW unless adam_w_mode is false."""
    kind = str(given.get("optimizer.type", "")).lower()
    if kind not in ("adam", "adamw"):
        return set()
    decoupled = kind == "adamw" or given.get("optimizer.params.adam_w_mode", True)
    put(document, "engine.optimizer.name", "adamw" if decoupled else "adam")
    return {"optimizer.type", "optimizer.params.adam_w_mode", "optimizer.params.torch_adam"}


def _speculation(given: Mapping[str, Any], document: dict[str, Any]) -> set[str]:
    if given.get(f"{_ZERO}offload_optimizer.super_offload"):
        put(document, "engine.offload_schedule", "speculative")
    used = {f"{_ZERO}offload_optimizer.super_offload"}
    if given.get("compile.deepcompile") and given.get(f"{_ZERO}stage") == 1:
        put(document, "engine.compile", "inductor")
        used.add("compile.deepcompile")
    return used


def _batch(given: Mapping[str, Any], document: dict[str, Any]) -> set[str]:
    """Set world_size to train_batch_size / (micro-batch size x accumulation steps), if that is whole."""
    total, micro = given.get("train_batch_size"), given.get("train_micro_batch_size_per_gpu")
    share = (micro or 0) * (given.get("gradient_accumulation_steps") or 1)
    if not isinstance(total, int) or not share or total % share:
        return set()
    put(document, "run.world_size", total // share)
    return {"train_batch_size"}


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
    given = SIZES | engine.model_dump(mode="json", exclude_none=True)
    config = {"engine": {"allgather_bucket_size": given["reduce_bucket_size"]} | given}
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


def _applies(key: str, engine: EngineSpec, torch_adam: bool) -> bool:
    """Return whether DeepSpeed reads a key in this configuration."""
    if key == f"{_ZERO}offload_optimizer.ratio":
        return engine.offload_optimizer != "none" and engine.zero_stage == 3
    if key.startswith(f"{_ZERO}offload_optimizer"):
        return engine.offload_optimizer != "none"
    if key.startswith(f"{_ZERO}offload_param"):
        return engine.offload_param != "none"
    if key.startswith(f"{_ZERO}stage3"):
        return engine.zero_stage == 3
    if key == "optimizer.params.bias_correction":  # torch's Adam has no such argument
        return not engine.optimizer.bias_correction and not torch_adam
    if key == "optimizer.params.amsgrad":
        return engine.optimizer.amsgrad
    return engine.dtype == "float16" or not key.startswith("fp16")


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
            reason = (why or {}).get(key)
            other = f"engine.{key} has no counterpart in {target}; left out"
            yield f"engine.{key}: {reason}" if reason else other
