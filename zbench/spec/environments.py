"""Other Python environments that run an engine (`engine_python`): their packages and their names.

Each environment is queried once, by a child process that imports no large package. zbench need not be
installed there: `_inside.py` adds this installation to its path. The sweep key
`environments` names a directory of environments; each has the name of its folder. A trial's configuration has
the path; its axes, and so the tables, have the name.
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

from zbench import _inside
from zbench.errors import nearest
from zbench.private import private_cache

OLDEST = (3, 11)
WORKER_NEEDS = ("pydantic", "psutil", "safetensors")
"""Packages that a worker imports besides torch."""

_PATIENCE_SECONDS = 60.0
_UNASKED: ContextVar[set[Path] | None] = ContextVar("unasked", default=None)


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment. versions: package -> version, of the queried packages that are installed.
    plugins: names of the engines that its packages register."""

    path: Path
    python: tuple[int, int, int]
    tag: str
    versions: Mapping[str, str]
    plugins: frozenset[str]

    @property
    def same_python(self) -> bool:
        """Return whether packages compiled for the running interpreter load there."""
        return self.tag == sys.implementation.cache_tag

    def facts(self) -> dict[str, str]:
        """Return the path and the versions, as a Record has them."""
        packages = {name: self.versions[name] for name in self.versions if name not in WORKER_NEEDS}
        return {"path": str(self.path), "python": ".".join(map(str, self.python)), **packages}


def executable(written: str, place: Path) -> Path:
    """Return the interpreter that a path names: the file, or that of a virtual environment's directory.

    Symbolic links are not resolved: Python finds a virtual environment by the path of the link.
    """
    path = Path(os.path.normpath(place.absolute() / Path(written).expanduser()))
    return path / "bin" / "python" if path.is_dir() else path


def environment(written: str, place: Path, packages: Sequence[str] = ()) -> Environment | str:
    """Return the environment that `engine_python` names, or the reason why no rank can run in it.

    packages: what the engine needs besides torch.
    """
    needed = ("torch", *packages, *WORKER_NEEDS)
    answer = describe(executable(written, place), needed)
    if isinstance(answer, str):
        return f"{written}: {answer}"
    if answer.python < OLDEST:
        version = ".".join(map(str, answer.python))
        oldest = ".".join(map(str, OLDEST))
        return f"{written} is Python {version}; zbench's worker needs {oldest} or newer"
    missing = [name for name in needed if name not in answer.versions]
    if missing:
        lacks = f"{written} has no {', '.join(missing)}"
        return f"{lacks}; run `{answer.path} -m pip install {' '.join(missing)}`"
    return answer


@contextlib.contextmanager
def unasked() -> Iterator[set[Path]]:
    """Start no interpreter in the body: a plan runs nothing. Yields the set of those not started."""
    left_out: set[Path] = set()
    token = _UNASKED.set(left_out)
    try:
        yield left_out
    finally:
        _UNASKED.reset(token)


def presumed(written: str, place: Path, plugins: frozenset[str]) -> Environment | None:
    """Return, inside `unasked`, an Environment that lacks nothing; None outside, or if it does not exist."""
    python = executable(written, place)
    left_out = _UNASKED.get()
    if left_out is None or not python.exists():
        return None
    left_out.add(python)
    return Environment(python, sys.version_info[:3], str(sys.implementation.cache_tag), {}, plugins)


@cache
def describe(python: Path, names: tuple[str, ...]) -> Environment | str:
    """Return what an interpreter says of itself and of packages with these names, or why it says nothing."""
    if not python.exists():
        return "no such interpreter; name a Python executable or the directory of a virtual environment"
    command = [str(python), "-E", _inside.__file__, "describe", ",".join(names), "zbench.engines"]
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


def extensions_directory(python: Path) -> Path:
    """Return an environment's directory of compiled extensions, in `$XDG_CACHE_HOME/zbench/extensions`.

    UsageError if others can reach it.
    """
    return private_cache("extensions", hashlib.sha256(str(python).encode()).hexdigest()[:12])


def with_environment(config: dict[str, Any], directory: str | None, place: Path | None) -> dict[str, Any]:
    """Return a configuration with the name of an environment in `directory` replaced by its path.

    place: base of relative paths; None: do not read the directory. ValueError, with the known names, if
    `engine_python` is neither such a name nor a path.
    """
    written = config["engine"].get("engine_python")
    if written is None or directory is None or place is None:
        return config
    folder = place / Path(directory).expanduser()
    names = sorted(path.parents[1].name for path in folder.glob("*/bin/python"))
    if written in names:
        return {**config, "engine": {**config["engine"], "engine_python": str(folder / written)}}
    if "/" in written or executable(written, place).exists():
        return config
    raise ValueError(
        f"no environment is named {written!r}{nearest(written, names)}; {directory} has"
        f" {', '.join(names) or 'none yet'}; name one, or give a path"
    )
