"""Starts the trial server with the interpreter of another environment, which has no zbench. Run by path.

Only `zbench` is added to that environment. All other packages, such as torch, are the environment's own.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from collections.abc import Sequence

NATIVE = "zbench._native"


class OwnZbench:
    """Finds the package `zbench` in given places, before any package of that name in the environment."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = list(places)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where zbench is; its modules are then found along its path."""
        if name == NATIVE:
            core = importlib.machinery.PathFinder.find_spec(name, path)
            return core or importlib.util.spec_from_loader(name, AbsentCore())
        if name.startswith("zbench."):  # not left to the import hook of a zbench that is installed there
            return importlib.machinery.PathFinder.find_spec(name, path)
        if name != "zbench":
            return None
        main = next(f for f in (os.path.join(p, "__init__.py") for p in self._places) if os.path.isfile(f))
        return importlib.util.spec_from_file_location(name, main, submodule_search_locations=self._places)


class AbsentCore(importlib.abc.Loader):
    """Loads a stand-in for the native core, which was built for another Python: using it raises an error."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave the module to the import system."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Let imports pass and uses fail."""

        def absent(name: str) -> object:
            if name in ("Gate", "UpdateFailed", "UpdateTimeout"):  # imported by name, never used by a peer
                return RuntimeError
            raise AttributeError(f"the native core was built for another Python, so it has no {name!r} here")

        module.__dict__["__getattr__"] = absent


def main(arguments: list[str]) -> None:
    """Add zbench and be the server. The first argument says where zbench is."""
    sys.meta_path.insert(0, OwnZbench(json.loads(arguments[0])))
    from zbench.launch.process.server import main as serve

    serve(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
