"""What zbench does inside another interpreter: this file runs there, by its path or as a copy.

Such an environment need not have zbench, and its Python may be older (3.8 or later): only the standard
library is imported at the start. There are four ways in:

- `python _inside.py describe ...` prints what the environment has.
- `python _inside.py run ...` runs a module of this zbench there.
- A copy in a revision's environment, called by a path file, shows it the packages of another one (`share`).
- As `sitecustomize` of a training script, it moves the first weights (`NudgeWeights`).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_NATIVE = "zbench._native"
_OPTIMIZERS = "torch.optim.optimizer"


class OwnPackages:
    """Finds some packages in given directories, before any import hook; a module they lack is not there."""

    def __init__(self, names: Collection[str], places: Sequence[str]) -> None:
        """names: of the packages, top level. places: the directories that hold them."""
        self._names, self._places = names, places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a module is; None for one of other packages."""
        top = name.partition(".")[0]
        if top not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, self._places if path is None else path)
        if spec is None and name == _NATIVE:
            return importlib.util.spec_from_loader(name, AbsentCore())
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if path is None and spec.submodule_search_locations is not None:
            parts = [os.path.join(place, name) for place in self._places]
            spec.submodule_search_locations = [part for part in parts if os.path.isdir(part)]
        return spec


class AbsentCore(importlib.abc.Loader):
    """Loads a stand-in for the native core, which was built for another Python: using it raises an error."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave the module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Let imports pass and uses fail."""

        def absent(name: str) -> object:
            if name in ("Gate", "UpdateFailed", "UpdateTimeout"):  # imported by name, never used by a peer
                return RuntimeError
            raise AttributeError(f"the native core was built for another Python, so it has no {name!r} here")

        module.__dict__["__getattr__"] = absent


def describe(packages: str, group: str) -> None:
    """Print, as JSON, this Python's version and tag, the versions of packages, and its plugins of a group.

    packages: names separated by commas; those that are not installed are left out.
    """
    from importlib import metadata

    versions = {}
    for name in packages.split(","):
        if importlib.util.find_spec(name) is not None:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = "unknown"
    points: Any = metadata.entry_points()
    plugins = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
    about = {
        "python": sys.version_info[:3],
        "tag": sys.implementation.cache_tag,
        "versions": versions,
        "plugins": sorted(point.name for point in plugins),
    }
    print(json.dumps(about))


def run(places: str, module: str, *arguments: str) -> None:
    """Run a module of zbench, as `python -m` does. places: zbench's directories, separated as on a path.

    Only zbench is added: all other packages, such as torch, are the environment's own.
    """
    import runpy

    parents = [os.path.dirname(place) for place in places.split(os.pathsep)]
    sys.meta_path.insert(0, OwnPackages({"zbench"}, parents))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def share(shared: Sequence[str], tree: str | None) -> None:
    """Show this environment the packages in other directories, except those in the working tree `tree`.

    What the environment has itself comes first.
    """
    import site

    entries = [entry for entry in os.listdir(_HERE) if not entry.endswith((".dist-info", ".pth"))]
    names = {entry.partition(".")[0] for entry in entries} - {"__pycache__", __name__}
    permitted = set(sys.path)
    for directory in shared:
        site.addsitedir(directory)
    if tree is not None:
        permitted.update(shared)
        inside = tree + os.sep
        sys.path[:] = [
            entry for entry in sys.path if entry in permitted or not (entry + os.sep).startswith(inside)
        ]
    sys.meta_path.insert(0, OwnPackages(names, [_HERE]))


class NudgeWeights:
    """Has the first optimizer that takes a parameter move its weights by one unit in the last place.

    Up and down in turn, the same on every rank: how far the result of the training then moves is a distance
    that rounding alone explains. Nothing but `torch.optim.Optimizer.__init__` changes.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Change torch's optimizers as they are imported."""
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            self._change(module.Optimizer)

        spec.loader.exec_module = execute_and_change
        return spec  # type: ignore[no-any-return]

    def _change(self, optimizer: Any) -> None:
        original = optimizer.__init__
        seen = set()

        def nudging(instance: Any, params: Any, defaults: Any) -> None:
            original(instance, params, defaults)
            for parameter in [one for group in instance.param_groups for one in group["params"]]:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    nudge(parameter)

        optimizer.__init__ = nudging


def nudge(parameter: Any) -> None:
    """Move the weights of a floating-point parameter up and down in turn."""
    import torch

    with torch.no_grad():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
        if local.numel() and local.is_floating_point():
            up = torch.arange(local.numel(), device=local.device).reshape(local.shape) % 2 == 0
            infinite = torch.full_like(local, float("inf"))
            local.copy_(torch.nextafter(local, torch.where(up, infinite, -infinite)))


def be_sitecustomize() -> None:
    """Nudge weights, and run the `sitecustomize` that this one hides, if there is one."""
    sys.meta_path.insert(0, NudgeWeights())
    places = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main(arguments: list[str]) -> None:
    """Do what the first of the arguments says, without this file's directory on the path of imports."""
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != _HERE]
    (describe if arguments[0] == "describe" else run)(*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "sitecustomize":
    be_sitecustomize()
