"""Runs inside a training script, as its `sitecustomize`: rounding errors are added, and the way is measured.

The script's environment need not have zbench, and its Python may be older (3.8 or later): only the standard
library is imported at the start. Two variables of the environment say what happens:

- `ZBENCH_NUDGE_UNITS`: by how many units in the last place weights are nudged; 0 changes nothing.
- `ZBENCH_WAY_DIR`: the folder to which each process writes how far the weights travelled from first to last.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_OPTIMIZERS = "torch.optim.optimizer"


class WatchOptimizers:
    """Changes torch's optimizers as they are imported.

    The first optimizer that takes a parameter nudges its weights: each moves up or down by `units` units in
    the last place. After each step of an optimizer, weights of float32 and float64 are nudged again, so that
    errors arise all along the training, as the errors of another order of additions do. Once autocast has
    computed in a shorter dtype, each gradient is also off by half a unit in the last place of that dtype. The
    signs are the same on every rank, and no draw is taken from the script's generators.
    """

    def __init__(self, units: int, way_dir: str | None) -> None:
        self._units, self._way_dir = units, way_dir
        self._firsts: list[tuple[Any, Any]] = []  # parameters, and their first values on the host
        self._seen: set[int] = set()
        self._steps = 0
        self._roundoff = 0.0  # of the shortest dtype in which autocast has computed

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec that changes torch's optimizers when they are loaded; None for other names."""
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            self.change(module)

        spec.loader.exec_module = execute_and_change
        return spec  # type: ignore[no-any-return]

    def change(self, module: Any) -> None:
        """Change the optimizers of `torch.optim.optimizer`."""
        original = module.Optimizer.__init__

        def watched(instance: Any, params: Any, defaults: Any) -> None:
            original(instance, params, defaults)
            self._begin([p for p in _parameters(instance) if id(p) not in self._seen])

        module.Optimizer.__init__ = watched
        if self._units and hasattr(module, "register_optimizer_step_post_hook"):
            module.register_optimizer_step_pre_hook(self._before_step)
            module.register_optimizer_step_post_hook(self._after_step)

    def _begin(self, parameters: list[Any]) -> None:
        self._seen |= {id(parameter) for parameter in parameters}
        if self._units:
            watch_autocast(self._found_dtype)
            for parameter in parameters:
                nudge(parameter, 0, self._units)
        if self._way_dir is not None:
            if not self._firsts:
                from multiprocessing.util import Finalize  # at the end of forked workers, too

                Finalize(None, self.write_way, exitpriority=0)
            self._firsts += [(parameter, _local(parameter).cpu().clone()) for parameter in parameters]

    def _found_dtype(self, dtype: Any) -> None:
        import torch

        self._roundoff = max(self._roundoff, torch.finfo(dtype).eps / 2)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        import torch

        if self._roundoff == 0.0:
            return
        with torch.no_grad():
            for parameter in _parameters(optimizer):
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    values = _local(parameter.grad)
                    signs = 1.0 - 2.0 * _pattern(values, self._steps + 1).to(values.dtype)
                    values.add_(values * signs, alpha=self._roundoff)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._steps += 1
        for parameter in _parameters(optimizer):
            if parameter.grad is not None and _is_wide(parameter):
                nudge(parameter, self._steps, self._units)

    def write_way(self) -> None:
        """Write the sum of squared distances of this process's parameters, and the number of elements."""
        with contextlib.suppress(Exception):  # at the end of a process a device may be gone
            moved = [(_local(p).cpu().double() - first.double()) for p, first in self._firsts]
            squares = sum(float(distance.square().sum()) for distance in moved)
            way = {"squares": squares, "elements": sum(distance.numel() for distance in moved)}
            with open(os.path.join(str(self._way_dir), f"{os.getpid()}.json"), "w") as file:
                json.dump(way, file)


def watch_autocast(found: Any) -> None:
    """Have `found` called with each dtype in which autocast computes."""
    from torch.amp import autocast_mode

    autocast: Any = autocast_mode.autocast
    enter = autocast.__enter__

    def watching(context: Any) -> Any:
        if context._enabled:
            found(context.fast_dtype)
        return enter(context)

    if enter.__name__ != "watching":
        autocast.__enter__ = watching


def nudge(parameter: Any, seed: int, units: int) -> None:
    """Move the weights of a floating-point parameter up or down, each by as many units in the last place.

    In a dtype shorter than float32 it is one unit. seed: of the signs.
    """
    import torch

    with torch.no_grad():
        local = _local(parameter)
        if local.numel() and local.is_floating_point():
            infinite = torch.full_like(local, float("inf"))
            up = _pattern(local, seed)
            unit = torch.nextafter(local, torch.where(up, infinite, -infinite)).sub_(local)
            local.add_(unit, alpha=units if _is_wide(local) else 1)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _is_wide(tensor: Any) -> bool:
    return bool(tensor.is_floating_point()) and tensor.element_size() >= 4


def _pattern(values: Any, seed: int) -> Any:
    """Return random booleans, the same for the same seed and shape."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, values.shape, generator=generator, dtype=torch.bool).to(values.device)


def be_sitecustomize() -> None:
    """Watch optimizers, and run the `sitecustomize` that this one hides, if there is one."""
    units = int(os.environ.get("ZBENCH_NUDGE_UNITS", "0"))
    sys.meta_path.insert(0, WatchOptimizers(units, os.environ.get("ZBENCH_WAY_DIR")))
    places = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    be_sitecustomize()
