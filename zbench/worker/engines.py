"""Finds the engine that a trial names, and builds it."""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import torch.distributed as dist
from torch import nn

from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import TrainingEngine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec
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
