"""The user's own model: `module:callable`, importable from the sweep's directory or the current one.

`contract.CONTRACT` says what it must offer. `make_batch` gets a seeded torch.Generator; the usual generators
of torch, Python and NumPy are seeded, too.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from zbench.errors import UsageError
from zbench.workloads.chance import drawn_by
from zbench.workloads.workload import Batch

_EXPECTED = "expected module:callable, where callable(**options) returns a torch.nn.Module"


def load_callable(name: str, base_dir: Path, *, key: str, expected: str) -> Callable[..., Any]:
    """Return what `module:callable` names, looked for in `base_dir` first; UsageError says what `key` may
    hold."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{key}: {name!r} names nothing; {expected}")
    for directory in (str(Path.cwd()), str(base_dir.resolve())):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(
            f"{key}: cannot load {name!r} ({type(error).__name__}: {error}); {expected}, importable from "
            f"{base_dir} or the current directory"
        ) from error
    if not callable(found):
        raise UsageError(f"{key}: {name!r} is a {type(found).__name__}, not callable; {expected}")
    loaded: Callable[..., Any] = found
    return loaded


def model_factory(name: str, options: Mapping[str, Any], base_dir: Path) -> Callable[[], nn.Module]:
    """Return the factory of the user's model; UsageError where it cannot be loaded, called, or gives no
    module."""
    build = load_callable(name, base_dir, key="workload.model", expected=_EXPECTED)

    def make() -> nn.Module:
        try:
            model = build(**options)
        except TypeError as error:
            raise UsageError(
                f"workload.model: {name}(**{dict(options)}) failed: {error}; {_EXPECTED}"
            ) from error
        if not isinstance(model, nn.Module):
            raise UsageError(f"workload.model: {name} returned a {type(model).__name__}; {_EXPECTED}")
        lazy = [key for key, value in model.named_parameters() if is_lazy(value)]
        if lazy:
            raise UsageError(
                f"workload.model: {name} has parameters without a shape ({lazy[0]}): call the model once on a"
                " batch before you return it"
            )
        return model

    return make


class ModelMadeBatches:
    """Micro-batches from the model's own `make_batch`."""

    def __init__(self, make: Callable[..., Any], *, batch_size: int, sequence_length: int) -> None:
        self._make, self._sizes = make, (batch_size, sequence_length)

    def micro_batch(self, seed: int) -> Batch:
        with drawn_by(seed):
            batch = self._make(torch.Generator().manual_seed(seed), *self._sizes)
        if not isinstance(batch, tuple) or not all(isinstance(x, Tensor) for x in batch):
            raise UsageError(
                "workload.model: expected make_batch(generator, micro_batch_size, sequence_length) to return "
                f"a tuple of tensors, got {type(batch).__name__}"
            )
        return batch
