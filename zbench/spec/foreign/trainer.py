"""TrainingArguments of transformers, as a file for `HfArgumentParser`, and TRL's, which extend them.

Keys: https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.errors import UsageError, closest
from zbench.spec import shapes
from zbench.spec.bundled import shape_of
from zbench.spec.foreign import accelerate
from zbench.spec.foreign.deepspeed import TRAINERS, from_deepspeed, sizes_of_hidden
from zbench.spec.foreign.hjson import read_foreign
from zbench.spec.foreign.reading import Imported, Table, block, boolean, checked, flat
from zbench.spec.problems import shown

_TABLE = Table.of("trainer")
KNOWN = sorted(_TABLE.known)
_ADAM = "engine.optimizer."


def from_training_args(args: Mapping[str, Any], base_dir: Path) -> Imported:
    """Return TrainingArguments as a sweep document; a missing key takes the Trainer's default.

    base_dir: base of the paths in the file. UsageError, with the key, for a value that cannot be read.
    """
    flat(args, "the Trainer's")  # refuses values that no record can hold
    args = {key: value for key, value in args.items() if value is not None}
    values = {
        theirs: checked(tuple(ours.split(".")), args.get(theirs, _TABLE.written["defaults"][theirs]), theirs)
        for theirs, ours in _TABLE.plain.items()
    }
    adam = {
        ours.removeprefix(_ADAM): values.pop(theirs)
        for theirs, ours in _TABLE.plain.items()
        if ours.startswith(_ADAM)
    }
    written = [args.get("adam_beta1", 0.9), args.get("adam_beta2", 0.999)]
    adam["betas"] = checked(("engine", "optimizer", "betas"), written, "adam_beta1, adam_beta2")
    half = {key: boolean(args.get(key, False), key) for key in ("bf16", "fp16")}
    if all(half.values()):
        raise UsageError("bf16: true beside fp16: true, which the Trainer refuses; keep one")
    sweep = Imported({"name": "trainer"})
    hidden = _model(args, base_dir, sweep)
    if args.get("deepspeed"):
        _with_deepspeed(args["deepspeed"], base_dir, values, adam, half, hidden, sweep)
    else:
        accelerate.fsdp_of_trainer(args, base_dir, sweep)
        if any(half.values()):
            sweep.put("engine.dtype", _dtype(half))
    for theirs, value in values.items():
        sweep.put(_TABLE.plain[theirs], value)
    optimizer = block(sweep.get("engine.optimizer"), "optimizer")
    sweep.document.setdefault("engine", {})["optimizer"] = {"name": "adamw"} | adam | optimizer
    for key in ("gradient_checkpointing", "activation_checkpointing"):
        if boolean(args.get(key, False), key):
            sweep.put("workload.activation_checkpointing", True)
    if boolean(args.get("use_cpu", False), "use_cpu"):
        sweep.put("run.device", "cpu")
    _notes(args, sweep)
    return sweep


def _dtype(half: Mapping[str, bool]) -> str:
    return "bfloat16" if half["bf16"] else "float16" if half["fp16"] else "float32"


def _model(args: Mapping[str, Any], base_dir: Path, sweep: Imported) -> int | None:
    """Read the model and the length of its sequences; return its hidden size, or None if that is unknown."""
    for key in _TABLE.written["lengths"]:
        if key in args:
            sweep.put("workload.sequence_length", args[key], key)
    name = str(args.get("model_name_or_path", ""))
    if not name:
        return None
    file = shapes.config_file(name, base_dir)
    config = read_foreign(file) if file else shape_of(name)
    if not isinstance(config, Mapping):
        sweep.note(
            "training",
            f"model_name_or_path: {name} is neither a folder here nor a bundled shape; a small gpt stands in"
            f" for it: fetch its config.json and write workload.model: hf:FOLDER",
        )
        return None
    sweep.put("workload.model", f"{shapes.PREFIX}{name}")
    hidden = config.get("hidden_size", config.get("n_embd", config.get("d_model")))
    return hidden if isinstance(hidden, int) and hidden > 0 else None


def _with_deepspeed(
    written: Any, base_dir: Path, arguments: Mapping[str, Any], adam: Mapping[str, Any],
    half: Mapping[str, bool], hidden: int | None, sweep: Imported,
) -> None:  # fmt: skip
    """Read the DeepSpeed configuration of the arguments; what it leaves `auto` is filled in from them."""
    config = written if isinstance(written, Mapping) else read_foreign(base_dir / str(written))
    config = dict(block(config, "deepspeed"))
    if not {"bf16", "fp16", "bfloat16"} & config.keys() and any(half.values()):  # as accelerate does
        config["bf16" if half["bf16"] else "fp16"] = {"enabled": True}
    filled = TRAINERS | {
        "train_micro_batch_size_per_gpu": arguments["per_device_train_batch_size"],
        "gradient_accumulation_steps": arguments["gradient_accumulation_steps"],
        "gradient_clipping": arguments["max_grad_norm"],
        "bf16.enabled": half["bf16"], "fp16.enabled": half["fp16"],
        **{f"optimizer.params.{key}": value for key, value in adam.items()},
    } | (sizes_of_hidden(hidden) if hidden else {})  # fmt: skip
    translated = from_deepspeed({"gradient_clipping": "auto"} | config, filled)
    for theirs, ours in (("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
                         ("gradient_accumulation_steps", "gradient_accumulation_steps"),
                         ("gradient_clipping", "max_grad_norm")):  # fmt: skip
        value = translated.get(_TABLE.plain[ours])
        if config.get(theirs, "auto") != "auto" and value != arguments[ours]:
            sweep.note(
                "training",
                f"deepspeed.{theirs}: {shown(value)} is not {ours}: {shown(arguments[ours])}, which the"
                f" Trainer refuses; {ours} is written",
            )
    workload = translated.document.pop("workload", {})
    workload.pop("global_batch_size", None)
    sweep.document["workload"] = workload | sweep.document.get("workload", {})
    for section in ("run", "engine", "axes"):
        if section in translated.document:
            sweep.document[section] = translated.document[section]
    if "optimizer" not in config:
        sweep.document.get("engine", {}).pop("optimizer", None)
    sweep.notes += translated.notes


def _notes(args: Mapping[str, Any], sweep: Imported) -> None:
    """Add the note on each argument that has no equal here."""
    optim = str(args.get("optim", "adamw"))
    if optim not in _TABLE.written["adamw"]:
        sweep.note("training", f"optim: {optim}: zbench has Adam and AdamW; AdamW stands in for it")
    schedule = str(args.get("lr_scheduler_type", "constant"))
    if schedule != "constant":
        sweep.note("training", f"lr_scheduler_type: {schedule}: zbench keeps the learning rate constant")
    for key, value in args.items():
        effect, reason = _TABLE.reason(key)
        similar = closest(key, KNOWN, cutoff=0.88) if key not in KNOWN else None
        if similar:
            sweep.note("training", f"{key}: no training argument; did you mean {similar}?")
        elif key in {*_TABLE.plain, *_TABLE.read, *_TABLE.written["lengths"]}:
            continue
        elif effect in (None, "rest") or value in (False, 0, ""):
            sweep.note("rest", key)
        else:
            sweep.note(effect, f"{key}: {reason}")
