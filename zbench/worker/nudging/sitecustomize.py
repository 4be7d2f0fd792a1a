"""Moves every weight by one unit in the last place before training, in a script that knows nothing of it.

Python imports `sitecustomize` at its start where its directory is on PYTHONPATH: this one's is, for one run
of a training script. It changes nothing but `torch.optim.Optimizer.__init__`: the first optimizer that takes
a parameter nudges it, up and down in turn, the same on every rank. How far the result moves is a distance
that rounding alone explains. The script's interpreter may be an older one, without zbench.
"""

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_TARGET = "torch.optim.optimizer"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_patch(module: Any) -> None:
            run(module)
            _patch(module.Optimizer)

        spec.loader.exec_module = run_and_patch
        return spec


def _patch(optimizer: Any) -> None:
    original, seen = optimizer.__init__, set()

    def nudging(self: Any, params: Any, defaults: Any) -> None:
        original(self, params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    _nudge(parameter)

    optimizer.__init__ = nudging


def _nudge(parameter: Any) -> None:
    import torch

    with torch.no_grad():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
        if local.numel() and local.is_floating_point():
            up = torch.arange(local.numel(), device=local.device).reshape(local.shape) % 2 == 0
            infinite = torch.full_like(local, float("inf"))
            local.copy_(torch.nextafter(local, torch.where(up, infinite, -infinite)))


def _run_next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    places = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _Finder())
_run_next()
