"""DeepSpeed's keys: which equal a key here, what a missing one and `auto` mean, and why others are left out.

Keys and defaults: https://www.deepspeed.ai/docs/config-json/. Old names are those that DeepSpeed still reads.
`auto` is filled in by transformers' Trainer:
https://huggingface.co/docs/transformers/deepspeed#deepspeed-and-trainer.
"""

from collections.abc import Callable, Mapping
from typing import Any

from zbench.errors import UsageError
from zbench.spec.engine import GPU_SIZES, SIZES, EngineSpec
from zbench.spec.foreign.reading import (
    Imported,
    Table,
    as_list,
    boolean,
    each,
    flat,
    number,
    reason_of_unknown,
    whole,
)
from zbench.spec.keys import value_at
from zbench.spec.problems import shown
from zbench.spec.run import RunSpec

ZERO = "zero_optimization."
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "bfp16": "bfloat16", "fp16": "float16"}
_TABLE = Table.of("deepspeed")
PLAIN = _TABLE.plain
"""DeepSpeed's key -> zbench's key; both have the same value."""
TRAINERS = _TABLE.written["trainer"]
"""What the Trainer fills in for `auto` where its arguments are at their defaults."""
_OFFLOAD = (f"{ZERO}offload_optimizer", f"{ZERO}offload_param")
KNOWN = sorted({
    *_TABLE.known, *_TABLE.written["aliases"], *_TABLE.written["old_offload"],
    *(f"{block}.{key}" for block in _OFFLOAD for key in _TABLE.written["nvme"]),
})  # fmt: skip
MANAGED = "managed_gradient_accumulation"
"""DeepSpeed's key: false if the training script alone knows a step's last backward."""
_BLOCKS = {name.partition(".")[0] for name in KNOWN if "." in name} | {*_OFFLOAD, "optimizer.params"}
_OF_HIDDEN: dict[str, tuple[str, Callable[[int], int]]] = {
    f"{ZERO}reduce_bucket_size": ("hidden_size^2", lambda hidden: hidden * hidden),
    f"{ZERO}stage3_prefetch_bucket_size": ("0.9 hidden_size^2", lambda hidden: int(0.9 * hidden * hidden)),
    f"{ZERO}stage3_param_persistence_threshold": ("10 hidden_size", lambda hidden: 10 * hidden),
}


def sizes_of_hidden(hidden: int) -> dict[str, int]:
    """Return what the Trainer fills in for sizes that are `auto`; hidden: the model's hidden size."""
    return {key: formula(hidden) for key, (_, formula) in _OF_HIDDEN.items()}


def from_deepspeed(config: object, filled: Mapping[str, Any] | None = None) -> Imported:
    """Return a DeepSpeed configuration as a sweep document.

    filled: what the Trainer fills in for `auto`; None: its arguments are unknown, and its defaults are noted.
    UsageError if it is no such configuration, or a value cannot be read; with the key.
    """
    options = _current(flat(config, "a DeepSpeed"))
    if not any(key.partition(".")[0] in {*KNOWN, *_BLOCKS} for key in options):
        raise UsageError(
            "this is no DeepSpeed configuration: it has none of DeepSpeed's keys; name another file"
        )
    sweep = Imported({"name": "deepspeed"})
    options = _without_auto(options, filled, sweep)
    for rule in (_precision, _zero, _optimizer, _batch, _accumulation):
        rule(options, sweep)
    for key, value in _with_defaults(options, sweep).items():
        if key in PLAIN:
            sweep.put(PLAIN[key], value, key)
    if "gradient_clipping" not in options:
        sweep.note(
            "training",
            "gradient_clipping: if it is missing, DeepSpeed from 0.19 on clips at 1.0, and zbench does not",
        )
    off = {
        key.partition(".")[0] for key, value in options.items() if key.endswith(".enabled") and not _on(value)
    }
    off |= {"fp16", "bf16"} - {key.partition(".")[0] for key in options if key.endswith(".enabled")}
    for key, value in options.items():
        if key not in PLAIN and key not in _TABLE.read:
            _left_out(key, value, sweep, is_off=key.partition(".")[0] in off)
    return sweep


def _current(options: dict[str, Any]) -> dict[str, Any]:
    """Return the keys under the names of today's DeepSpeed. UsageError for a value in place of a block."""
    current: dict[str, Any] = {}
    old = _TABLE.written["old_offload"]
    for key, value in options.items():
        if key == "zero_optimization" and _is_switch(value):  # of the first releases
            current[f"{ZERO}stage"] = int(boolean(value, key))
        elif key in old:
            if boolean(value, key):
                current[f"{ZERO}{old[key]}.device"] = "cpu"
        elif key in _BLOCKS and value != {}:
            raise UsageError(f"{key}: expected a block of keys, got {shown(value)}; correct it")
        elif value != {}:
            current[_TABLE.written["aliases"].get(key, key)] = value
    return current


def _is_switch(value: object) -> bool:
    return isinstance(value, bool) or str(value).lower() in ("true", "false")


def _without_auto(
    options: Mapping[str, Any], filled: Mapping[str, Any] | None, sweep: Imported
) -> dict[str, Any]:
    """Return the keys with the Trainer's values in place of `auto`; a guessed value gets a note."""
    values = TRAINERS if filled is None else filled
    half = {"bf16", "fp16"}
    autos = [key for key in ("bf16", "fp16") if options.get(f"{key}.enabled") == "auto"]
    if (
        filled is None
        and autos
        and not any(_on(options.get(f"{key}.enabled", False)) for key in half - {*autos})
    ):
        sweep.note(
            "training",
            f"engine.dtype: float32, because {autos[0]}.enabled is auto, which stands for the argument"
            f" {autos[0]} of the Trainer, and this file does not have it; write dtype: {DTYPES[autos[0]]} if"
            " you train so",
        )
    resolved = {}
    for key, value in options.items():
        if value != "auto":
            resolved[key] = value
        elif key in values:
            resolved[key] = values[key]
            if filled is None and not key.endswith(".enabled"):
                sweep.note(
                    "training", f"{key}: auto is the Trainer's; its default, {shown(values[key])}, is written"
                )
        elif key in _OF_HIDDEN:
            ours = PLAIN[key].rpartition(".")[2]
            sweep.note(
                "speed",
                f"{key}: auto is {_OF_HIDDEN[key][0]} of the model, which is not known here; {ours} keeps"
                f" zbench's default, {_default(ours)}",
            )
        elif key in PLAIN:
            ours = PLAIN[key].removeprefix("engine.")
            sweep.note("speed", f"{key}: auto; {ours} keeps zbench's default, {_default(ours)}")
        elif not key.startswith("scheduler.") and key != "train_batch_size":
            sweep.note("rest", key)
    return resolved


def _default(ours: str) -> str:
    if ours in SIZES:
        beside = f" (on a GPU {GPU_SIZES[ours]:,})" if GPU_SIZES[ours] != SIZES[ours] else ""
        return f"{SIZES[ours]:,}{beside}"
    return shown(value_at(EngineSpec().model_dump(mode="json"), tuple(ours.split("."))))


def _precision(options: dict[str, Any], sweep: Imported) -> None:
    """Read the dtypes. DeepSpeed accumulates in the model's dtype, but at stage 0 in bfloat16."""
    bf16 = each(options.get("bf16.enabled", False), boolean, "bf16.enabled")
    fp16 = each(options.get("fp16.enabled", False), boolean, "fp16.enabled")
    if bf16 is True and fp16 is True:
        raise UsageError("bf16.enabled: true beside fp16.enabled: true, which DeepSpeed refuses; keep one")
    dtype: Any = "bfloat16" if bf16 is True else "float16" if fp16 is True else "float32"
    if isinstance(bf16, list):
        dtype = ["bfloat16", dtype]
    elif isinstance(fp16, list):
        dtype = ["float16", dtype]
    sweep.put("engine.dtype", dtype)
    stages = each(options.get(f"{ZERO}stage", 0), whole, f"{ZERO}stage")
    accumulated = "float32"
    if dtype == "float16" or (dtype == "bfloat16" and stages != 0):
        accumulated = dtype
    if "fp16.initial_scale_power" in options:
        power = each(options["fp16.initial_scale_power"], _power, "fp16.initial_scale_power")
        sweep.put("engine.initial_loss_scale", power, "fp16.initial_scale_power")
    scale = each(options.get("fp16.loss_scale", 0), number, "fp16.loss_scale")
    if isinstance(scale, list):
        sweep.note("training", f"fp16.loss_scale: {scale}: zbench's is one scale, which adapts")
    elif scale:
        sweep.put("engine.initial_loss_scale", scale, "fp16.loss_scale")
        sweep.note(
            "training", f"fp16.loss_scale: {scale:g} is constant in DeepSpeed; zbench's only begins there"
        )
    written: dict[str, Any] = {
        key: each(options[key], _dtype, key)
        for key in ("data_types.grad_accum_dtype", "communication_data_type")
        if key in options
    }
    if "float16" not in as_list(dtype):
        written = _without_float16(written, sweep)
    accumulated = written.get("data_types.grad_accum_dtype", accumulated)
    if accumulated != "float32":
        sweep.put("engine.grad_accum_dtype", accumulated)
    reduced = written.get("communication_data_type", dtype)  # zbench's default is `accumulated`
    if reduced != accumulated and not (isinstance(reduced, list) and reduced == dtype):
        sweep.put("engine.communication_dtype", reduced)


def _without_float16(written: Mapping[str, Any], sweep: Imported) -> dict[str, Any]:
    """Return dtypes that need no loss scaling, with a note on each key that asked for float16."""
    kept = dict[str, Any]()
    for key, value in written.items():
        values = as_list(value)
        others = [one for one in values if one != "float16"]
        if others:
            kept[key] = others if isinstance(value, list) else value
        if others != values:
            sweep.note("training", f"{key}: float16 needs loss scaling, and so dtype float16; it is left out")
    return kept


def _power(written: object, key: str) -> float:
    exponent = whole(written, key)
    if not 0 <= exponent <= 100:
        raise UsageError(f"{key}: expected 0 to 100, got {exponent}; correct it")
    return 2.0**exponent


def _dtype(name: object, key: str) -> str:
    dtypes = DTYPES | {"fp16": "float16", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
    if str(name).lower() not in dtypes:
        raise UsageError(f"{key}: expected fp32, bf16 or fp16, got {shown(name)}; correct it")
    return dtypes[str(name).lower()]


def _zero(options: dict[str, Any], sweep: Imported) -> None:
    """Read what depends on the stage: offload, groups of ranks, leaf modules, compilation."""
    stages = each(options.get(f"{ZERO}stage", 0), whole, f"{ZERO}stage")
    has_3 = stages == 3 or (isinstance(stages, list) and 3 in stages)
    for key in (f"{ZERO}offload_optimizer.device", f"{ZERO}offload_param.device"):
        devices = options.get(key)
        if "nvme" in as_list(devices):
            options[key] = each(devices, _without_nvme, key)
            sweep.note("speed", f"{key}: zbench does not offload to NVMe; cpu is written in its place")
    for key, default in ((f"{ZERO}offload_param.device", "none"), (f"{ZERO}offload_optimizer.ratio", 1.0)):
        if key in options and not has_3 and options.pop(key) != default:
            sweep.note("speed", f"{key}: DeepSpeed reads it at stage 3 only, and so it is left out")
    if boolean(options.get(f"{ZERO}offload_optimizer.super_offload", False), "super_offload"):
        sweep.put("engine.offload_schedule", "speculative")
    group = whole(options.get(f"{ZERO}mics_shard_size", -1), f"{ZERO}mics_shard_size")
    if group > 0:
        sweep.put("engine.shard_group_size", group)
        sweep.put("run.world_size", _ranks() if _ranks() % group == 0 else group)
    leaves = [*_names(options, f"{ZERO}leaf_module.classes"), *_names(options, f"{ZERO}leaf_module.names")]
    if leaves and not has_3:
        sweep.note("speed", f"{ZERO}leaf_module: DeepSpeed reads {shown(leaves)} at stage 3 only; left out")
    elif leaves:
        sweep.put("engine.leaf_modules", tuple(name.rpartition(".")[2] for name in leaves))
    if boolean(options.get("compile.deepcompile", False), "compile.deepcompile"):
        if stages == 1:
            sweep.put("engine.compile", "inductor")
        else:
            sweep.note("speed", "compile.deepcompile: zbench compiles stage 1 only")
    for key in (f"{ZERO}stage3_prefetch_bucket_size", f"{ZERO}sub_group_size", f"{ZERO}reduce_bucket_size"):
        if options.get(key) in (0, "0"):
            options[key] = 1
            sweep.note("speed", f"{key}: 0 is 1 here, the smallest size")


def _without_nvme(device: object, _: str) -> object:
    return "cpu" if device == "nvme" else device


def _names(options: Mapping[str, Any], key: str) -> list[str]:
    names = options.get(key, [])
    return [str(name) for name in as_list(names)]


def _optimizer(options: dict[str, Any], sweep: Imported) -> None:
    """Read the optimizer's type. DeepSpeed's `Adam` decays weights as AdamW unless adam_w_mode is false."""
    kinds = options.get("optimizer.type")
    if kinds is None:
        if "optimizer.params.adam_w_mode" in options:
            sweep.note("rest", "optimizer.params.adam_w_mode")
        return
    kind = str(kinds[0] if isinstance(kinds, list) and kinds else kinds)
    name = kind.lower()
    if name not in ("adam", "adamw") or isinstance(kinds, list):
        sweep.note(
            "training", f"optimizer.type: zbench has Adam and AdamW; AdamW stands in for {shown(kinds)}"
        )
        name = "adamw"
    key = "optimizer.params.adam_w_mode"
    decoupled = name == "adamw" or boolean(options.get(key, True), key)
    sweep.put("engine.optimizer.name", "adamw" if decoupled else "adam")


def _batch(options: dict[str, Any], sweep: Imported) -> None:
    """Read train_batch_size: micro-batch size x accumulation steps x ranks; one of these is derived."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, steps = (each(options[key], whole, key) if key in options else None for key in keys)
    if total is None:
        return
    if isinstance(total, list) or isinstance(micro, list) or isinstance(steps, list):
        sweep.note("training", f"train_batch_size: {shown(total)} follows from the other sizes, which vary")
        return
    share, fewest = (micro or 1) * (steps or 1), sweep.get("engine.shard_group_size", 1)
    if min(total, share) < 1 or total % (share * fewest):
        groups = " x mics_shard_size" if fewest > 1 else ""
        raise UsageError(
            f"train_batch_size: {total} is not a multiple of train_micro_batch_size_per_gpu x"
            f" gradient_accumulation_steps{groups}, which is {share * fewest}; change one of them"
        )
    if micro and steps:
        sweep.put("run.world_size", total // share)
        return
    sweep.put("workload.global_batch_size", total)
    ranks = sweep.get("run.world_size", _ranks())
    if total % (share * ranks):
        sweep.put("run.world_size", fewest)
        sweep.note(
            "training",
            f"train_batch_size: {total} does not divide over {ranks} ranks; run.world_size is {fewest}",
        )
        ranks = fewest
    if micro is None:
        sweep.put("workload.micro_batch_size", total // (share * ranks))
    if options.pop("gradient_accumulation_steps", None) is not None:
        sweep.note(
            "speed",
            f"gradient_accumulation_steps: it follows from global_batch_size: {total}"
            f" ({steps} with run.world_size: {ranks})",
        )


def _accumulation(options: dict[str, Any], sweep: Imported) -> None:
    """Read managed_gradient_accumulation: false, with which each step() ends a step."""
    if boolean(options.get(MANAGED, True), MANAGED):
        return
    sweep.put("engine.accumulation_mode", "unmanaged", MANAGED)
    steps = options.pop("gradient_accumulation_steps", 1)
    sweep.put("workload.backwards_per_step", steps, "gradient_accumulation_steps")
    sweep.note(
        "training",
        f"{MANAGED}: false: the script decides how many backwards a step has; {shown(steps)} is written, and"
        " zbench adds their gradients, where DeepSpeed divides each by gradient_accumulation_steps",
    )


def _ranks() -> int:
    return RunSpec.model_validate({"world_size": "auto"}).world_size


def _with_defaults(options: Mapping[str, Any], sweep: Imported) -> dict[str, Any]:
    """Return the keys with DeepSpeed's defaults where those differ from zbench's, unless they were `auto`."""
    filled = dict(options)
    stage = each(options.get(f"{ZERO}stage", 0), whole, f"{ZERO}stage")
    if stage != 0:
        named = {note.text.partition(":")[0] for note in sweep.notes}
        overlapped = 3 in stage if isinstance(stage, list) else stage == 3
        defaults = _TABLE.written["defaults"] | {f"{ZERO}overlap_comm": overlapped}
        filled = {key: value for key, value in defaults.items() if key not in named} | filled
        if isinstance(stage, list) and overlapped and f"{ZERO}overlap_comm" not in options:
            sweep.note(
                "speed", f"{ZERO}overlap_comm: DeepSpeed's default is true at stage 3 only; true is written"
            )
    if "optimizer.type" in options:
        filled = {"optimizer.params.weight_decay": 0.0} | filled
    return filled


def _on(value: object) -> bool:
    return str(value).lower() not in ("false", "0", "off", "no")


def _left_out(key: str, value: Any, sweep: Imported, *, is_off: bool) -> None:
    """Add the note on a key that has no equal here. is_off: its block is not enabled."""
    parts = key.split(".")
    for name in (".".join(parts[:length]) for length in range(len(parts), 0, -1)):
        effect, reason = _TABLE.reason(name)
        if effect is None or (name in _OFFLOAD and parts[-1] not in _TABLE.written["nvme"]):
            continue
        is_false = str(value).lower() == "false"  # 0 is a number, such as a learning rate
        changes_nothing = is_off or is_false or value == _TABLE.written["same"].get(name)
        if effect == "rest" or changes_nothing:
            sweep.note("rest", name)
        else:
            sweep.note(effect, f"{key}: {reason}")
        return
    refuses = key.startswith((ZERO, "fp16.", "bf16."))
    sweep.notes.append(reason_of_unknown(key, KNOWN, "DeepSpeed", refuses))
