"""`engine.ds_config`: a user's own DeepSpeed configuration, and the engine keys that follow from it.

A value in the configuration sets the engine key. The engine's keys, and so the axes, set the keys that are
`"auto"` or missing in the configuration. Different values of one key in both are an error.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from zbench.spec.deepspeed import put, to_deepspeed
from zbench.spec.engine import EngineSpec
from zbench.spec.foreign.deepspeed import PLAIN, from_deepspeed
from zbench.spec.foreign.hjson import read_foreign
from zbench.spec.keys import Key, assign, leaves, value_at
from zbench.spec.problems import key_text, shown, unwritable
from zbench.spec.trial import TrialSpec

_Sets = Callable[[Key], bool]
_OURS = PLAIN | {
    "bf16.enabled": "engine.dtype",
    "data_types.grad_accum_dtype": "engine.grad_accum_dtype",
    "communication_data_type": "engine.communication_dtype",
    "optimizer.type": "engine.optimizer.name",
}
_NVME = (("none", "cpu", "auto"), "expected none or cpu; zbench does not measure offload to NVMe")
_REFUSED = {  # key -> accepted values, and the reason for refusing all others
    "scheduler": ((), "zbench's reference has a constant learning rate; remove the block"),
    "zero_optimization.offload_optimizer.device": _NVME,
    "zero_optimization.offload_param.device": _NVME,
    "optimizer.type": (
        ("adam", "adamw", "auto"),
        "zbench's reference computes Adam and AdamW only; name one of them",
    ),
    "fp16.enabled": (
        ("false", "auto"),
        "zbench's reference has no DeepSpeed loss scale; use bf16, or neither for float32",
    ),
}
_ROUND_ROBIN = "zero_optimization.round_robin_gradients"
_DERIVED = ("train_batch_size", "gradient_accumulation_steps")


def with_ds_config(config: dict[str, Any], varied: Collection[Key], place: Path | None) -> dict[str, Any]:
    """Return a configuration with a complete `ds_config` and equal engine keys; unchanged without one.

    varied: the paths of the axes. place: base of relative paths; None: do not read the file that is named.
    ValueError, with the remedy, if keys disagree; SpecError if the file cannot be read.
    """
    ds_config = config["engine"].get("ds_config")
    if isinstance(ds_config, str) and place is not None:
        file = place / Path(ds_config).expanduser()
        if not file.is_file():
            raise ValueError(f"ds_config: {file}: no such file; the path is relative to the sweep file")
        ds_config = read_foreign(file)
    elif ds_config is None or isinstance(ds_config, str):
        return config
    if not isinstance(ds_config, Mapping):
        raise ValueError(f"ds_config: expected a mapping of DeepSpeed's keys, got {shown(ds_config)}")
    for problem in unwritable(ds_config):
        raise ValueError(f"ds_config: {key_text(problem.path)}: {problem.message}")
    written = dict(leaves(ds_config))
    for name, value in written.items():
        accepted, reason = _REFUSED.get("scheduler" if name.startswith("scheduler.") else name, (None, ""))
        if accepted is not None and str(value).lower() not in accepted:
            raise ValueError(f"ds_config: {name}: {shown(value)}: {reason}")
    sweep_config = config
    defaults = {"engine": EngineSpec().model_dump(mode="json")}

    def sets(path: Key) -> bool:
        """Return whether the sweep sets a key: as an axis, or as an engine key that is not at its default."""
        differs = value_at(sweep_config, path) != value_at(defaults, path)
        return path in varied or (path[0] == "engine" and differs)

    config = _agreed(config, written, sets)
    if config["engine"]["dtype"] != "float32" and written.get(_ROUND_ROBIN):
        raise ValueError(
            f"ds_config: {_ROUND_ROBIN}: DeepSpeed then gives no access to its float32 master weights,"
            " which zbench needs to verify bfloat16; remove it, or train in float32"
        )
    total = written.get("train_batch_size")
    workload = config["workload"]
    batch = workload["micro_batch_size"] * config["engine"]["gradient_accumulation_steps"]
    batch *= config["run"]["world_size"]
    if isinstance(total, int) and total != batch and workload.get("global_batch_size") is None:
        raise ValueError(
            f"ds_config: train_batch_size: {total} is not micro_batch_size x gradient_accumulation_steps x"
            f' world_size, which is {batch}; write "auto", or change one of them'
        )
    return {**config, "engine": {**config["engine"], "ds_config": _filled(config, written, sets)}}


def _agreed(config: dict[str, Any], written: Mapping[str, Any], sets: _Sets) -> dict[str, Any]:
    """Return the configuration with the values of the ds_config. ValueError if the sweep sets another value.

    A key that the ds_config leaves out takes DeepSpeed's default, unless the sweep sets it.
    """
    decided = {key: value for key, value in written.items() if value != "auto"}
    deciding = {_OURS[key]: key for key in decided if key in _OURS}
    auto_keys = {_OURS[key] for key, value in written.items() if value == "auto" and key in _OURS}
    agreed = copy.deepcopy(config)
    theirs = {key: value for key, value in decided.items() if key != "train_batch_size"}
    meant = from_deepspeed(_nested({"gradient_accumulation_steps": 1} | theirs)).document
    for ours, values in meant.get("axes", {}).items():
        key = deciding.get(ours, ours)
        raise ValueError(f"ds_config: {key}: expected one value, got {shown(values)}; make {ours} an axis")
    for ours, value in leaves(meant):
        path = tuple(ours.split("."))
        if path[0] not in ("engine", "workload") or ours in auto_keys:
            continue
        if sets(path):
            now = value_at(config, path)
            if ours not in deciding or now == value:
                continue
            raise ValueError(
                f"{ours} is {shown(now)}, and ds_config says {deciding[ours]}:"
                f" {shown(decided[deciding[ours]])};"
                f' write "auto" there, or leave {path[-1]} out'
            )
        assign(agreed, path, value)
    return agreed


def _filled(config: dict[str, Any], written: Mapping[str, Any], sets: _Sets) -> dict[str, Any]:
    """Return the ds_config with its `"auto"` and missing keys set from the engine's keys."""
    plain = {key: value for key, value in config["engine"].items() if key != "ds_config"}
    trial = TrialSpec.model_validate({**config, "engine": plain, "axes": {}})
    filled = {key: value for key, value in written.items() if value != "auto" and key not in _DERIVED}
    has_optimizer = any(key.startswith("optimizer.") for key in written)
    for key, value in leaves(to_deepspeed(trial).document):
        ours = tuple(_OURS.get(key, "").split("."))
        if key in filled or key in _DERIVED or (key.startswith("optimizer.") and not has_optimizer):
            continue
        # the default of gradient_clipping depends on DeepSpeed's version
        if written.get(key) == "auto" or key == "gradient_clipping" or sets(ours):
            filled[key] = value
    return _nested(filled)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in flat.items():
        put(document, key, value)
    return document
