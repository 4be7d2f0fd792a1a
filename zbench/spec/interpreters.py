"""Other Python environments that run an engine (`engine_python`): what each has, and what it lacks.

An environment is asked once, by a child process that imports nothing heavy. zbench itself need not be
installed there: `launch/interpreter.py` puts this one on its path.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLDEST = (3, 11)
WORKER_NEEDS = ("pydantic", "psutil", "safetensors")
"""What a worker imports beside torch. To an environment of the same Python, these are lent."""

_PATIENCE_SECONDS = 60.0
_ASK = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.util, json
from importlib import metadata
names, group = json.loads(sys.argv[1])
versions = {}
for name in names:
    if importlib.util.find_spec(name) is not None:
        try:
            versions[name] = metadata.version(name)
        except Exception:
            versions[name] = "unknown"
points = metadata.entry_points()
found = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
print(json.dumps({"python": sys.version_info[:3], "tag": sys.implementation.cache_tag, "versions": versions,
                  "plugins": sorted(point.name for point in found)}))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment. versions: of the packages that were asked for and are there. plugins: engines
    that its packages register."""

    path: Path
    python: tuple[int, int, int]
    tag: str
    versions: Mapping[str, str]
    plugins: frozenset[str]

    @property
    def same_python(self) -> bool:
        """Whether compiled packages of the running interpreter load there."""
        return self.tag == sys.implementation.cache_tag

    def facts(self) -> dict[str, str]:
        """Return what a record says of it."""
        packages = {name: self.versions[name] for name in self.versions if name not in WORKER_NEEDS}
        return {"path": str(self.path), "python": ".".join(map(str, self.python)), **packages}


def executable(written: str, place: Path) -> Path:
    """Return the interpreter that a text names: itself, or that of a virtual environment's directory.

    The path is not resolved: an environment is known by the link that leads out of it.
    """
    path = Path(os.path.normpath(place.absolute() / Path(written).expanduser()))
    return path / "bin" / "python" if path.is_dir() else path


def environment(written: str, place: Path, packages: Sequence[str] = ()) -> Environment | str:
    """Return the environment that `engine_python` names, or why no rank can run in it, with the remedy.

    packages: what the engine needs beside torch.
    """
    found = _asked(executable(written, place), ("torch", *WORKER_NEEDS, *packages))
    if isinstance(found, str):
        return f"{written}: {found}"
    if found.python < OLDEST:
        version = ".".join(map(str, found.python))
        oldest = ".".join(map(str, OLDEST))
        return f"{written} is Python {version}; zbench's worker needs {oldest} or newer"
    needed = ["torch", *packages, *(() if found.same_python else WORKER_NEEDS)]
    missing = [name for name in needed if name not in found.versions]
    if missing:
        lacks = f"{written} has no {', '.join(missing)}"
        return f"{lacks}; run `{found.path} -m pip install {' '.join(missing)}`"
    return found


def lendable() -> dict[str, str]:
    """Return package -> directory of what a worker imports beside torch, of the running interpreter."""
    names = (*WORKER_NEEDS, "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
    found: dict[str, str] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            inner = Path(spec.origin).parent
            found[name] = str(inner.parent if spec.submodule_search_locations else inner)
    return found


@cache
def _asked(python: Path, names: tuple[str, ...]) -> Environment | str:
    if not python.exists():
        return "no such interpreter; name a Python executable or the directory of a virtual environment"
    command = [str(python), "-E", "-c", _ASK, json.dumps([names, "zbench.engines"])]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=_PATIENCE_SECONDS, cwd=os.sep
        )
        told = json.loads(done.stdout)
        version = tuple(told["python"])
        return Environment(python, version, told["tag"], told["versions"], frozenset(told["plugins"]))
    except OSError as error:
        return f"cannot be run ({error.strerror}); name a Python executable"
    except subprocess.TimeoutExpired:
        return "gave no answer within a minute; name a Python executable"
    except (ValueError, KeyError, TypeError):
        return "is no Python interpreter that works; name another"


def extensions_directory(python: Path, variables: Mapping[str, str]) -> Path:
    """Return where an environment's compiled extensions are kept: `$XDG_CACHE_HOME/zbench/extensions`."""
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    name = hashlib.sha256(str(python).encode()).hexdigest()[:12]
    return Path(base) / "zbench" / "extensions" / name
