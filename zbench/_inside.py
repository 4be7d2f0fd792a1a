"""What zbench does inside another interpreter: this file runs there, by its path or as a copy.

Such an environment need not have zbench, and its Python may be older (3.8 or later): only the standard
library is imported at the start. There are three ways in:

- `python _inside.py describe ...` prints what the environment has.
- `python _inside.py run ...` runs a module of this zbench there.
- A copy in a revision's environment, called by a path file, shows it the packages of another one (`share`).
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


def main(arguments: list[str]) -> None:
    """Do what the first of the arguments says, without this file's directory on the path of imports."""
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != _HERE]
    (describe if arguments[0] == "describe" else run)(*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
