"""Finds the engine that a trial names, and builds it."""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import nn

from zbench.engine.assembly.build import Instruments
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.deferred import sharding
from zbench.engine.protocols import TrainingEngine
from zbench.errors import UsageError
from zbench.job.failures import kind_of
from zbench.spec.engine import EngineSpec
from zbench.spec.trial import TrialSpec, builds_sharded
from zbench.workloads import Workload
from zbench.workloads.custom import load_callable

EngineBuilder = Callable[..., TrainingEngine]
"""`build(model, spec, process_group=None, *, instruments=None)`: an engine that trains `model`, a float32 CPU
or CUDA module, as `spec` says. An engine that wraps the module offers the wrapper as its attribute `module`.
"""

GROUP = "zbench.engines"
_METHODS = ("backward", "step", "full_parameters", "memory_by_category", "close")
_EXPECTED = (
    "expected module:callable, where callable(model, spec, process_group=None, *, instruments=None)"
    " returns a TrainingEngine"
)


def find_builder(name: str, base_dir: Path) -> EngineBuilder:
    """Return the builder that `engine:` names: `builtin`, a peer, an entry point, or `module:callable`.

    Raises UsageError for an unknown name.
    """
    if ":" in name:
        return load_callable(name, base_dir, key="engine.engine", expected=_EXPECTED)
    if name == "builtin":
        return cast(EngineBuilder, importlib.import_module("zbench.engine").build_engine)
    for point in entry_points(group=GROUP):
        if point.name == name:
            return cast(EngineBuilder, point.load())
    try:
        return cast(EngineBuilder, importlib.import_module(f"zbench.peers.{name}").build_engine)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"engine.engine: cannot use {name!r} here: {error}") from error


def make_model(
    trial: TrialSpec,
    workload: Workload,
    instruments: Instruments,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> nn.Module:
    """Return a trial's model on `device`, whole or in shards, as `build` says.

    `build: auto` makes it whole where its own code refuses shards; UsageError with the remedy where `sharded`
    asks for them.
    """
    if not builds_sharded(trial):
        return workload.make_model().to(device)
    cpu = DeviceMemory(torch.device("cpu"))
    try:
        collectives = instruments.transport(group, cpu, cpu, None, "auto")
        with sharding(collectives, device), instruments.on_host():
            model = workload.make_model()
    except Exception as error:
        if kind_of(error) in ("oom", "storage", "peer_lost"):  # the machine's fault, maybe on this rank alone
            raise
        if trial.engine.build == "auto":
            return workload.make_model().to(device)
        raise UsageError(
            f"engine.build: the model cannot be made in shards; set build: whole, or change it: {error}"
        ) from error
    return instruments.to_device(model, device)


def build(
    name: str,
    model: nn.Module,
    spec: EngineSpec,
    base_dir: Path,
    instruments: Instruments,
    group: dist.ProcessGroup | None = None,
) -> TrainingEngine:
    """Return the engine that a trial names, with `instruments` if it supports them.

    UsageError for a model without trainable parameters, and for a factory that returns no engine.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("workload.model: the model has no trainable parameter; nothing can be trained")
    engine = find_builder(name, base_dir)(model, spec, group, instruments=instruments)
    missing = [method for method in _METHODS if not callable(getattr(engine, method, None))]
    if missing:
        raise UsageError(
            f"engine.engine: {name} returned {type(engine).__name__}, which has no {', '.join(missing)}; "
            f"expected a TrainingEngine with the methods {', '.join(_METHODS)}"
        )
    return engine
