"""Files of `accelerate config`: DeepSpeed's section, FSDP's section, and launch keys.

Keys: https://huggingface.co/docs/accelerate/package_reference/cli and
https://huggingface.co/docs/accelerate/package_reference/fsdp.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec.foreign.deepspeed import from_deepspeed
from zbench.spec.foreign.hjson import read_foreign
from zbench.spec.foreign.reading import (
    Effect,
    Imported,
    Table,
    block,
    boolean,
    checked,
    flat,
    reason_of_unknown,
    whole,
)
from zbench.spec.peers import PEERS
from zbench.spec.problems import shown

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "no": "float32", "false": "float32"}
_TABLE = Table.of("accelerate")
_DEEPSPEED = Table(_TABLE.written["deepspeed_config"])
_FSDP = Table(_TABLE.written["fsdp_config"])
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def from_accelerate(config: Mapping[str, Any], base_dir: Path) -> Imported:
    """Return a file of `accelerate config` as a sweep document; its paths are relative to `base_dir`."""
    flat(config, "accelerate's")
    options = {key: value for key, value in config.items() if value is not None}
    sweep = Imported({"name": "accelerate", "workload": {}, "run": {}, "engine": {}})
    kind = str(options.get("distributed_type", "")).upper()
    precision = str(options.get("mixed_precision", "no")).lower()
    if precision not in _DTYPES:
        sweep.note("training", f"mixed_precision: zbench has no {precision}; float32 is written")
    dtype = _DTYPES.get(precision, "float32")
    ranks = whole(options.get("num_processes", 0), "num_processes")
    if ranks > 0:
        sweep.put("run.world_size", ranks)
    if boolean(options.get("use_cpu", False), "use_cpu"):
        sweep.put("run.device", "cpu")
    theirs = block(options.get("deepspeed_config"), "deepspeed_config")
    if theirs and kind in ("DEEPSPEED", ""):
        _deepspeed(theirs, base_dir, dtype, sweep)
    elif dtype != "float32":
        sweep.put("engine.dtype", dtype)
    fsdp = block(options.get("fsdp_config"), "fsdp_config")
    if kind == "FSDP" or (fsdp and not kind):
        machines = max(1, whole(options.get("num_machines", 1), "num_machines"))
        _fsdp(fsdp, dtype, ranks // machines if machines > 1 else 0, sweep)
        _parallel(block(options.get("parallelism_config"), "parallelism_config"), sweep)
    for section, meant in (("deepspeed_config", ("DEEPSPEED", "")), ("fsdp_config", ("FSDP", ""))):
        if options.get(section) and kind not in meant:
            sweep.note(
                "speed", f"{section}: accelerate reads it with distributed_type {meant[0]} only, not {kind}"
            )
    if "gradient_accumulation_steps" in options:
        key = "gradient_accumulation_steps"
        sweep.put(f"engine.{key}", options[key], key)
    _rest(options, sweep)
    return sweep


def _rest(options: Mapping[str, Any], sweep: Imported) -> None:
    for key, value in options.items():
        effect, reason = _TABLE.reason(key)
        if key == "parallelism_config" and str(options.get("distributed_type", "")).upper() != "FSDP":
            sweep.note("speed", f"{key}: zbench reads it with distributed_type FSDP only")
        elif effect == "rest" or (effect is not None and not value):
            sweep.note("rest", key)
        elif effect is not None:
            sweep.note(effect, f"{key}: {reason}")
        elif key not in _TABLE.read:
            sweep.notes.append(reason_of_unknown(key, _TABLE.known, "accelerate", refuses=True))


def _deepspeed(theirs: dict[str, Any], base_dir: Path, dtype: str, sweep: Imported) -> None:
    """Read accelerate's own DeepSpeed keys, or the file of DeepSpeed that it names."""
    named = theirs.pop("deepspeed_config_file", None)
    if named is not None:
        translated = from_deepspeed(read_foreign(base_dir / str(named)))
        run = translated.document.get("run", {}) | sweep.document["run"]
        sweep.document |= {**translated.document, "name": "accelerate", "run": run}
        sweep.document.setdefault("workload", {})
        sweep.notes += translated.notes
    elif dtype != "float32":
        sweep.put("engine.dtype", dtype)
        sweep.put("engine.grad_accum_dtype", dtype)  # DeepSpeed's default
    for key, value in theirs.items():
        ours = _DEEPSPEED.plain.get(key)
        (effect, reason) = _DEEPSPEED.reason(key)
        if ours is not None and value == "auto":
            sweep.note("speed", f"deepspeed_config.{key}: auto; zbench's default is kept")
        elif ours is not None:
            if value == "nvme":
                value = "cpu"
                sweep.note(
                    "speed", f"deepspeed_config.{key}: zbench does not offload to NVMe; cpu is written"
                )
            sweep.put(ours, value, f"deepspeed_config.{key}")
        elif effect == "speed" and value not in ("none", ""):
            sweep.note("speed", f"deepspeed_config.{key}: {reason}")
        elif effect is not None:
            sweep.note("rest", f"deepspeed_config.{key}")
        else:
            unknown = reason_of_unknown(key, _DEEPSPEED.known, "accelerate", refuses=True)
            sweep.note("training", f"deepspeed_config.{unknown.text}")
    if sweep.get("engine.offload_param") == "cpu" and sweep.get("engine.zero_stage", 0) != 3:
        sweep.document["engine"].pop("offload_param")
        sweep.note(
            "speed", "deepspeed_config.offload_param_device: DeepSpeed reads it at stage 3 only; left out"
        )


def fsdp_of_trainer(args: Mapping[str, Any], base_dir: Path, sweep: Imported) -> None:
    """Read the keys `fsdp` and `fsdp_config` of the Trainer, whose keys may leave the prefix `fsdp_` out."""
    options = args.get("fsdp") or ""
    words = options if isinstance(options, list) else str(options).lower().split()
    words = [str(word).lower() for word in words]
    config = args.get("fsdp_config")
    if not words or words == ["false"]:
        if config:
            sweep.note("speed", "fsdp_config: the Trainer reads it with the key fsdp only")
        return
    theirs = block(read_foreign(base_dir / config) if isinstance(config, str) else config, "fsdp_config")
    for word in words:
        if word.upper() in _STRATEGIES:
            theirs.setdefault("sharding_strategy", word.upper())
    if "offload" in words:
        theirs["offload_params"] = True
    dtype = next((dtype for key, dtype in _DTYPES.items() if args.get(key) in (True, "true")), "float32")
    _fsdp(theirs, dtype, 0, sweep)


def _fsdp(written: Mapping[str, Any], dtype: str, ranks_of_node: int, sweep: Imported) -> None:
    """Read an FSDP section. ranks_of_node: of each machine, for hybrid sharding; 0: one machine."""
    theirs = {key.removeprefix("fsdp_"): value for key, value in written.items() if value is not None}
    strategy = _strategy(theirs)
    if strategy == "NO_SHARD":
        sweep.document["engine"] = sweep.document.get("engine", {}) | {"engine": "ddp", "zero_stage": 0}
        sweep.note("speed", "fsdp_sharding_strategy: NO_SHARD shards nothing, which is engine: ddp")
        return
    version = whole(theirs.get("version", 1), "fsdp_version")
    if version == 1:
        sweep.note("speed", "fsdp_version: FSDP2 stands in for version 1")
    resharding = strategy in ("FULL_SHARD", "HYBRID_SHARD")
    engine: dict[str, Any] = {"engine": "fsdp2", "zero_stage": 3 if resharding else 2}
    if boolean(theirs.get("offload_params", False), "fsdp_offload_params"):
        engine |= {"offload_optimizer": "cpu", "offload_param": "cpu"}
    if dtype != "float32":
        engine |= {"dtype": dtype, "communication_dtype": dtype}  # accelerate's policy: both
    if strategy.startswith("HYBRID") and ranks_of_node:
        engine["shard_group_size"] = ranks_of_node
    for key in ("activation_checkpointing", "gradient_checkpointing"):
        if boolean(theirs.get(key, False), f"fsdp_{key}"):
            sweep.put("workload.activation_checkpointing", True)
    sweep.document["engine"] = sweep.document.get("engine", {}) | engine
    for key, value in theirs.items():
        effect, reason = _FSDP.reason(key)
        if key in _FSDP.read:
            continue
        if effect is None:
            keys = [f"fsdp_{name}" for name in _FSDP.known]
            unknown = reason_of_unknown(f"fsdp_{key}", keys, "accelerate", refuses=True)
            sweep.note("training", f"fsdp_config.{unknown.text}")
        elif effect == "rest" or value in (False, "false", "NO_WRAP", "NO_PREFETCH"):
            sweep.note("rest", f"fsdp_{key}")
        else:
            sweep.note(effect, f"fsdp_{key}: {reason}")


def _strategy(theirs: Mapping[str, Any]) -> str:
    """Return the sharding strategy's name: of FSDP1's number or name, or of FSDP2's reshard_after_forward."""
    resharding = theirs.get("reshard_after_forward")
    written = theirs.get("sharding_strategy", resharding)
    if written is None or (resharding is not None and str(resharding).upper() not in _STRATEGIES):
        return "FULL_SHARD" if boolean(resharding if resharding is not None else True,
                                       "fsdp_reshard_after_forward") else "SHARD_GRAD_OP"  # fmt: skip
    name = str(written).upper().rpartition(".")[2]
    if name in ("1", "2", "3", "4", "5"):
        name = _STRATEGIES[int(name) - 1]
    if name not in _STRATEGIES:
        raise UsageError(
            f"fsdp_sharding_strategy: expected one of {', '.join(_STRATEGIES)}, got {shown(written)};"
            " correct it"
        )
    return name


def _parallel(theirs: Mapping[str, Any], sweep: Imported) -> None:
    """Read accelerate's mesh: its data-parallel sizes are HSDP's; other kinds of parallelism are not here."""
    sizes = {
        key.removeprefix("parallelism_config_"): whole(value, f"parallelism_config.{key}")
        for key, value in theirs.items()
        if str(value).strip().lstrip("-").isdigit()
    }
    shards, copies = sizes.get("dp_shard_size", 1), sizes.get("dp_replicate_size", 1)
    if shards > 1 and copies > 1:
        sweep.put("engine.shard_group_size", shards)
        sweep.put("run.world_size", sweep.get("run.world_size", shards * copies))
    for key, size in sizes.items():
        if key in ("tp_size", "cp_size", "sp_size", "pp_size", "ep_size") and size > 1:
            sweep.note("training", f"parallelism_config.{key}: {size}: zbench has data parallelism only")


def within_peer(sweep: Imported) -> None:
    """Leave out the engine keys that zbench does not set for FSDP2, each with a note."""
    engine = sweep.document.get("engine", {})
    peer = PEERS.get(str(engine.get("engine")))
    if peer is not None and engine.get("dtype") == "float16":
        engine.pop("communication_dtype", None)
        engine["dtype"] = "float32"
        sweep.note("training", f"engine.dtype: {engine['engine']} scales no loss here; float32 is written")
    for key in [] if peer is None else [key for key in engine if key not in peer.reads]:
        value = checked(("engine", key), engine.pop(key), key)
        effect: Effect = "training" if "dtype" in key else "speed"
        sweep.note(
            effect, f"engine.{key}: {shown(value)}: zbench does not set it for {engine['engine']}; left out"
        )
