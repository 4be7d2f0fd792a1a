"""Tells by its keys which tool a file belongs to, and refuses by name those that zbench does not read."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.errors import SpecError, UsageError
from zbench.spec.foreign import accelerate, deepspeed, trainer
from zbench.spec.foreign.hjson import read_foreign
from zbench.spec.foreign.reading import Imported

FORMS = (
    "ds_config.json, accelerate.yaml, training_args.json, train.py, hf:NAME_OR_CONFIG or my_module:make_model"
)
_OTHERS = tomllib.loads(Path(__file__).with_name("others.toml").read_text(encoding="utf-8"))["tool"]


def foreign_tool(data: object) -> str | None:
    """Return the name of a tool whose files zbench does not read, if `data` is one of them."""
    if not isinstance(data, Mapping):
        return None
    if any(isinstance(value, Mapping) and "_component_" in value for value in data.values()):
        return "torchtune"
    keys = {str(key).replace("-", "_") for key in data}
    for tool in _OTHERS:
        if not {*tool.get("has", ())} <= keys or len(keys & {*tool.get("beside", ())}) < tool.get("count", 0):
            continue
        if keys <= {*tool.get("only", keys)}:
            return str(tool["name"])
    return None


def known_tool(data: object) -> str | None:
    """Return whose file `data` is, if zbench reads those: DeepSpeed, accelerate, the Trainer or a model."""
    if not isinstance(data, Mapping) or {"workload", "axes", "schema_version"} & data.keys():
        return None
    keys = {str(key) for key in data}
    if "model_type" in keys or ("architectures" in keys and "vocab_size" in keys):
        return "model"
    if keys & {"distributed_type", "compute_environment", "deepspeed_config", "megatron_lm_config"}:
        return "accelerate"
    if {"num_processes", "mixed_precision"} <= keys or (
        "fsdp_config" in keys and not keys & {"fsdp", "output_dir", "learning_rate"}
    ):
        return "accelerate"
    if keys and all(key.startswith("fsdp_") for key in keys):
        return "fsdp_config"
    marks = {"per_device_train_batch_size", "output_dir", "learning_rate", "per_gpu_train_batch_size", "fsdp"}
    deepspeeds = {key.partition(".")[0] for key in deepspeed.KNOWN}
    if keys & marks or len(keys & {*trainer.KNOWN} - deepspeeds) >= 2:
        return "the Trainer"
    return "DeepSpeed" if keys & deepspeeds else None


def from_file(path: Path) -> Imported | str:
    """Return another tool's file as a sweep document, or `hf:PATH` if it configures a model of transformers.

    UsageError, with the file and the key, if it is of no known form or has a value that cannot be read.
    """
    data = read_foreign(path)
    if not isinstance(data, Mapping):
        raise UsageError(f"--from {path}: expected a mapping of keys; expected one of {FORMS}")
    if {"workload", "axes"} & data.keys():
        raise UsageError(f"--from {path}: this is a sweep file already; run it with `zbench sweep {path}`")
    tool = foreign_tool(data)
    if tool is not None:
        named = data.get("deepspeed")
        inner = f"; its DeepSpeed file can be read: --from {named}; or" if isinstance(named, str) else ";"
        raise UsageError(
            f"--from {path}: this is a configuration of {tool}, which zbench does not read{inner}"
            " measure the command that trains with it, as workload.command (docs/own-script.md)"
        )
    try:
        kind = known_tool(data)
        if kind == "model":
            return str(path)
        if kind == "accelerate":
            return accelerate.from_accelerate(data, path.parent)
        if kind == "fsdp_config":
            return accelerate.from_accelerate({"distributed_type": "FSDP", "fsdp_config": data}, path.parent)
        if kind == "the Trainer":
            return trainer.from_training_args(data, path.parent)
        return deepspeed.from_deepspeed(data)
    except SpecError:
        raise  # of a file that this one names; it says its place
    except UsageError as error:
        other = f"; or use one of {FORMS}" if "no DeepSpeed configuration" in str(error) else ""
        raise UsageError(f"--from {path}: {error}{other}") from None


def converting(path: Path) -> str | None:
    """Return the message for another tool's file in place of a sweep file; None if it is of no such tool."""
    try:
        data: Any = read_foreign(path)
    except UsageError:
        return None
    tool = foreign_tool(data) or known_tool(data)
    if tool is None:
        return None
    description = (
        "configures a model"
        if tool == "model"
        else f"is a file of {tool.replace('fsdp_config', 'accelerate')}"
    )
    return f"this {description}, no sweep; convert it with `zbench init sweep.yaml --from {path}`"
