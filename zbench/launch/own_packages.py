"""What an environment of a revision imports: its own packages first, then those of the running interpreter.

The running interpreter's packages may be installed in any way: as files, or editable, by a path file or by an
import hook (scikit-build-core, setuptools). So its directories are added as `site` adds them, hooks included.
A hook stands before the path, though, and would find the working tree's code for a name that the revision
has, too: so what the environment itself has is looked up before all hooks, and only there. Entries of the
path that lie in the working tree are dropped for the same reason.
"""

import json
from collections.abc import Sequence
from pathlib import Path

MODULE = "zbench_shared_packages"

SOURCE = '''\
"""Written by `zbench compare --paired`; see zbench/launch/own_packages.py."""

import importlib.machinery
import json
import os
import site
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class OwnPackages:
    """Finds what this environment has, before any import hook; a module it lacks is not there at all."""

    def __init__(self):
        entries = [e for e in os.listdir(HERE) if not e.endswith((".dist-info", ".pth"))]
        self.names = {e.partition(".")[0] for e in entries} - {"__pycache__", __name__}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.names:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, [HERE] if path is None else path)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


def add(document):
    known = json.loads(document)
    kept = set(sys.path)
    for directory in known["shared"]:
        site.addsitedir(directory)
    tree = known["tree"]
    if tree:
        inside = [e for e in sys.path if e not in kept and (e + os.sep).startswith(tree + os.sep)]
        for entry in inside:
            if entry not in known["shared"]:
                sys.path.remove(entry)
    sys.meta_path.insert(0, OwnPackages())
'''


def write(site_packages: Path, shared: Sequence[str], tree: Path | None) -> None:
    """Make an environment import so; `tree` is the working tree that must not be seen, None for none."""
    (site_packages / f"{MODULE}.py").write_text(SOURCE)
    document = json.dumps({"shared": list(shared), "tree": str(tree) if tree else None})
    (site_packages / f"{MODULE}.pth").write_text(f"import {MODULE}; {MODULE}.add({document!r})\n")
