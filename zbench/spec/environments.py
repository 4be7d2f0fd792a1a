"""Other Python environments that run an engine (`engine_python`): what each has, and the names of a sweep.

An environment is asked once, by a child process that imports nothing heavy. zbench itself need not be
installed there: `launch/foreign_env.py` puts this one on its path. `environments` gives names to them: a
mapping is name -> path; a directory stands for the environments in it, each named as its folder is. The
configuration of a trial holds the path; its axes, and so the tables, show the name.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zbench.errors import nearest
from zbench.spec.axes import included, resolve_axes
from zbench.spec.problems import KeyPath, Problem
from zbench.spec.sweep import SweepSpec

OLDEST = (3, 11)
WORKER_NEEDS = ("pydantic", "psutil", "safetensors")
"""What a worker imports beside torch. To an environment of the same Python, these are lent."""

_PATIENCE_SECONDS = 60.0
_UNASKED: ContextVar[set[Path] | None] = ContextVar("unasked", default=None)
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
engines = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
print(json.dumps({"python": sys.version_info[:3], "tag": sys.implementation.cache_tag, "versions": versions,
                  "plugins": sorted(point.name for point in engines)}))
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
    answer = _asked(executable(written, place), ("torch", *WORKER_NEEDS, *packages))
    if isinstance(answer, str):
        return f"{written}: {answer}"
    if answer.python < OLDEST:
        version = ".".join(map(str, answer.python))
        oldest = ".".join(map(str, OLDEST))
        return f"{written} is Python {version}; zbench's worker needs {oldest} or newer"
    needed = ["torch", *packages, *(() if answer.same_python else WORKER_NEEDS)]
    missing = [name for name in needed if name not in answer.versions]
    if missing:
        lacks = f"{written} has no {', '.join(missing)}"
        return f"{lacks}; run `{answer.path} -m pip install {' '.join(missing)}`"
    return answer


@contextlib.contextmanager
def unasked() -> Iterator[set[Path]]:
    """Have the body start no interpreter: a plan runs nothing. Yields those that it would have asked."""
    left_out: set[Path] = set()
    token = _UNASKED.set(left_out)
    try:
        yield left_out
    finally:
        _UNASKED.reset(token)


def presumed(written: str, place: Path, plugins: frozenset[str]) -> Environment | None:
    """Return what stands for an environment that is not asked: one that lacks nothing. None where it is."""
    python, left_out = executable(written, place), _UNASKED.get()
    if left_out is None or not python.exists():
        return None
    left_out.add(python)
    return Environment(python, sys.version_info[:3], str(sys.implementation.cache_tag), {}, plugins)


def lendable() -> dict[str, str]:
    """Return package -> directory of what a worker imports beside torch, of the running interpreter."""
    names = (*WORKER_NEEDS, "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
    folders: dict[str, str] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            inner = Path(spec.origin).parent
            folders[name] = str(inner.parent if spec.submodule_search_locations else inner)
    return folders


@cache
def _asked(python: Path, names: tuple[str, ...]) -> Environment | str:
    if not python.exists():
        return "no such interpreter; name a Python executable or the directory of a virtual environment"
    command = [str(python), "-E", "-c", _ASK, json.dumps([names, "zbench.engines"])]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=_PATIENCE_SECONDS, cwd=os.sep
        )
        answer = json.loads(done.stdout)
        version = tuple(answer["python"])
        return Environment(python, version, answer["tag"], answer["versions"], frozenset(answer["plugins"]))
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


_PATH = ("engine", "engine_python")


def unknown_names(sweep: SweepSpec, place: Path) -> Iterator[Problem]:
    """Yield each `engine_python` that is neither a name of the mapping `environments` nor a path.

    An environment that has a name and is not there is no mistake of the file: that trial is invalid.
    """
    if isinstance(sweep.environments, Mapping) and sweep.environments:
        for where, written in _written(sweep):
            if written not in sweep.environments and not _is_path(written, place):
                yield Problem(where, _unknown(written, list(sweep.environments)))


def with_environment(
    config: dict[str, Any], environments: Mapping[str, str] | str, place: Path | None
) -> dict[str, Any]:
    """Return a configuration whose `engine_python` is the path that its name stands for.

    place: where relative paths begin; None leaves a directory unexamined. ValueError, with the names that
    exist, where a directory has no such environment.
    """
    written = config["engine"].get("engine_python")
    if written is None or not environments:
        return config
    if isinstance(environments, str):
        if place is None:
            return config
        directory = place / Path(environments).expanduser()
        folders = sorted(directory.iterdir()) if directory.is_dir() else []
        known: Mapping[str, str] = {
            folder.name: str(folder) for folder in folders if (folder / "bin" / "python").exists()
        }
        if written not in known and not _is_path(written, place):
            raise ValueError(f"{_unknown(written, list(known))} ({environments})")
    else:
        known = environments
    return {**config, "engine": {**config["engine"], "engine_python": known.get(written, written)}}


def _written(sweep: SweepSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yield every `engine_python` of a sweep and where it stands."""
    if sweep.engine.engine_python is not None:
        yield _PATH, sweep.engine.engine_python
    for name, axis in zip(sweep.axes, resolve_axes(sweep), strict=True):
        if axis.path == _PATH:
            yield from ((("axes", name), value) for value in axis.values or () if value is not None)
    for index, point in enumerate(included(sweep)):
        if point.get(_PATH) is not None:
            yield ("include", index), point[_PATH]


def _is_path(written: str, place: Path) -> bool:
    return "/" in written or executable(written, place).exists()


def _unknown(written: str, known: list[str]) -> str:
    has = f"environments has {', '.join(known)}" if known else "environments holds none yet"
    return f"no environment is named {written!r}{nearest(written, known)}; {has}; name one, or give a path"
