"""Other Python environments that run an engine (`engine_python`): what each has, and the names of a sweep.

An environment is asked once, by a child process that imports nothing heavy. zbench itself need not be
installed there: `launch/foreign_env.py` puts this one on its path. `environments` is a directory of them,
each named as its folder. The configuration of a trial holds the path; its axes, and so the tables, show the
name.
"""

import contextlib
import hashlib
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

OLDEST = (3, 11)
WORKER_NEEDS = ("pydantic", "psutil", "safetensors")
"""What a worker imports beside torch."""

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
    needed = ["torch", *packages, *WORKER_NEEDS]
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
        return "is not a working Python interpreter; name another"


def extensions_directory(python: Path, variables: Mapping[str, str]) -> Path:
    """Return where an environment's compiled extensions are kept: `$XDG_CACHE_HOME/zbench/extensions`."""
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    name = hashlib.sha256(str(python).encode()).hexdigest()[:12]
    return Path(base) / "zbench" / "extensions" / name


def with_environment(config: dict[str, Any], directory: str | None, place: Path | None) -> dict[str, Any]:
    """Return a configuration in which the name of an environment in `directory` has become its path.

    place: where relative paths begin; None leaves the directory unexamined. ValueError, with the names that
    exist, where the directory has no such environment and the text is no path either.
    """
    written = config["engine"].get("engine_python")
    if written is None or directory is None or place is None:
        return config
    folder = place / Path(directory).expanduser()
    known = sorted(path.parents[1].name for path in folder.glob("*/bin/python"))
    if written in known:
        return {**config, "engine": {**config["engine"], "engine_python": str(folder / written)}}
    if "/" in written or executable(written, place).exists():
        return config
    raise ValueError(
        f"no environment is named {written!r}{nearest(written, known)}; {directory} has"
        f" {', '.join(known) or 'none yet'}; name one, or give a path"
    )
