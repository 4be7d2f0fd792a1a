"""Other engines that a sweep may name, and the keys that each supports; other keys are refused."""

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from zbench.errors import nearest
from zbench.spec import environments
from zbench.spec.combinations import Rule, broken, differs
from zbench.spec.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class Peer:
    """stages: supported values of zero_stage. reads: supported engine keys.

    unmanaged_from: the version of its package from which it need not know at each backward whether that is
    the last of the step; None where this depends on `reduce_at`. rounds_first: it casts the model to the
    lower precision before it copies master weights, so these start with rounded values.
    """

    stages: tuple[int, ...]
    reads: frozenset[str]
    needs: str | None = None  # a package beyond torch
    unmanaged_from: str | None = None
    rounds_first: bool = False


_ALL = frozenset({
    "engine", "engine_python", "zero_stage", "gradient_clipping", "gradient_accumulation_steps",
    "accumulation_mode", "optimizer", "param_groups",
})  # fmt: skip
_DEEPSPEED = frozenset({
    "offload_optimizer", "offload_param", "offload_schedule", "reduce_bucket_size", "allgather_bucket_size",
    "ds_config", "dtype",
    "grad_accum_dtype", "communication_dtype", "sub_group_size", "prefetch_bucket_size",
    "param_persistence_threshold", "overlap_comm",
})  # fmt: skip
_FSDP2 = frozenset({
    "reduce_at", "dtype", "grad_accum_dtype", "communication_dtype", "offload_optimizer", "offload_param",
    "shard_group_size", "build",
})  # fmt: skip
PEERS = {
    "ddp": Peer((0,), _ALL | {"reduce_at", "reduce_bucket_size"}),
    "zero_redundancy": Peer((1,), _ALL | {"reduce_at", "reduce_bucket_size"}),
    "fsdp2": Peer((2, 3), _ALL | _FSDP2),
    "deepspeed": Peer(
        (0, 1, 2, 3), _ALL | _DEEPSPEED, needs="deepspeed", unmanaged_from="0.19.8", rounds_first=True
    ),
}

_UNJUDGED = (
    Rule("engine.dtype", lambda e: e.dtype == "float16",
     "zbench's reference has no DeepSpeed loss scale; set dtype: bfloat16 or float32, or engine: builtin"),
    Rule("engine.dtype", lambda e: e.dtype == "bfloat16" and e.zero_stage == 0,
     "at stage 0 DeepSpeed gives no access to its float32 master weights, which a verdict on bfloat16 needs;"
     " set zero_stage: 1, or dtype: float32"),
    Rule("engine.grad_accum_dtype", lambda e: e.dtype == "float32" and e.grad_accum_dtype != "float32",
     "DeepSpeed accumulates a float32 model's gradients in float32; leave grad_accum_dtype out"),
)  # fmt: skip
"""Configurations that zbench refuses because it cannot verify DeepSpeed's results."""


def peer_conflicts(
    engine: EngineSpec, place: Path | None = None, *, simulated: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each setting that the engine of a configuration does not support.

    place: base of a relative `engine_python`; None: do not check that environment. simulated: by rules,
    DeepSpeed needs neither package nor environment.
    """
    name = engine.engine
    by_rules = simulated and name == "deepspeed"
    plugins = _plugins()
    missing = None if by_rules else missing_package(name)
    versions: Mapping[str, str] = {}
    if engine.engine_python is not None:
        plugins = frozenset()
        missing = None
        if place is not None and not by_rules:
            environment = elsewhere(name, engine.engine_python, place)
            if isinstance(environment, str):
                yield "engine.engine_python", environment
                return
            plugins, versions = environment.plugins, environment.versions
    if name == "builtin" or name in plugins or ":" in name:  # with a colon: the user's module:callable
        return
    if name not in PEERS:
        engines = ["builtin", *PEERS, *sorted(plugins)]
        yield (
            "engine.engine",
            f"unknown engine {name!r}{nearest(name, engines)}; expected one of {', '.join(engines)}",
        )
        return
    peer = PEERS[name]
    if missing:
        yield "engine.engine", missing
    if engine.zero_stage not in peer.stages:
        stages = " or ".join(str(stage) for stage in peer.stages)
        yield "engine.zero_stage", f"{name} supports zero_stage {stages} only; set that, or engine: builtin"
    unread = [key for key in EngineSpec.model_fields if key not in peer.reads]
    unread += [f"optimizer.{key}" for key in ("bias_correction", "moments_dtype", "moments_rounding")]
    unread = [key for key in unread if differs(engine, ("engine", *key.split(".")))]
    if any(group.bias_correction is False for group in engine.param_groups.values()):
        unread.append("param_groups.*.bias_correction")
    for key in unread:
        yield f"engine.{key}", f"{name} has no {key}; leave it out, or set engine: builtin"
    if name == "deepspeed":
        yield from broken(_UNJUDGED, engine)
    if name == "fsdp2" and engine.dtype == "float16":
        yield "engine.dtype", "FSDP2 scales no loss; set dtype: bfloat16 or float32, or engine: builtin"
    if peer.unmanaged_from is not None:
        if engine.accumulation_mode == "unmanaged":
            version = versions.get(name) if by_rules or engine.engine_python else _installed(name)
            yield from _unmanaged_conflicts(engine, peer.unmanaged_from, version, by_rules=by_rules)
    elif engine.reduce_at == "boundary" and engine.accumulation_mode != "micro_steps":
        yield (
            "engine.reduce_at",
            f"{name} cannot know the last backward beforehand; set reduce_at: auto"
            " or accumulation_mode: micro_steps",
        )


def _unmanaged_conflicts(
    engine: EngineSpec, oldest: str, version: str | None, *, by_rules: bool
) -> Iterator[tuple[str, str]]:
    """Yield why DeepSpeed cannot leave the last backward open. version: None where it was not asked."""
    if by_rules:
        yield (
            "engine.accumulation_mode",
            "the rules of DeepSpeed's memory know counted and marked backwards only; for an estimate set"
            " accumulation_mode: multi_backward",
        )
    if version is not None and _numbers(version) < _numbers(oldest):
        yield (
            "engine.accumulation_mode",
            f"DeepSpeed {version} must know the last backward, or it loses gradients; install {oldest} or"
            " newer, or set accumulation_mode: micro_steps or multi_backward",
        )
    if engine.overlap_comm and engine.zero_stage < 2:
        yield (
            "engine.overlap_comm",
            "without a known last backward DeepSpeed overlaps from stage 2 on only; set overlap_comm: false",
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _installed(package: str) -> str | None:
    return None if importlib.util.find_spec(package) is None else metadata.version(package)


def with_own_stage(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose file names no zero_stage with the stage that its engine has: DDP's is 0,
    ZeroRedundancyOptimizer's 1, FSDP2's 3.
    """
    engine = config["engine"]
    peer = PEERS.get(engine["engine"])
    if peer is None or engine["zero_stage"] in peer.stages:
        return config
    return {**config, "engine": {**engine, "zero_stage": max(peer.stages)}}


def begins_rounded(engine: EngineSpec) -> bool:
    """Return whether a run's master weights start with values rounded to the model's lower precision."""
    peer = PEERS.get(engine.engine)
    return engine.dtype != "float32" and peer is not None and peer.rounds_first


def missing_package(name: str) -> str | None:
    """Return a message, with the remedy, if the package of a peer is not installed; else None."""
    peer = PEERS.get(name)
    if peer is None or peer.needs is None or importlib.util.find_spec(peer.needs) is not None:
        return None
    return f"{peer.needs} is not installed; run `pip install {peer.needs}` or set engine: builtin"


def elsewhere(name: str, engine_python: str, place: Path) -> environments.Environment | str:
    """Return the environment `engine_python` that runs an engine, or the reason why it cannot."""
    presumed = environments.presumed(engine_python, place, frozenset({name} - PEERS.keys()))
    if presumed is not None:
        return presumed
    needs = PEERS[name].needs if name in PEERS else None
    environment = environments.environment(engine_python, place, () if needs is None else (needs,))
    if isinstance(environment, str) or name != "builtin" or environment.same_python:
        return environment
    ours, theirs = sys.implementation.cache_tag, environment.tag
    return f"the builtin engine's kernels are built for {ours}, and {engine_python} is {theirs}; name another"


@cache
def _plugins() -> frozenset[str]:
    """Return the names of installed engine plug-ins. Cached: a search checks thousands of points."""
    return frozenset(point.name for point in metadata.entry_points(group="zbench.engines"))
