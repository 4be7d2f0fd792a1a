"""Named environments: `environments` gives names to the Python environments that `engine_python` may take.

A mapping is name -> path. A directory stands for the environments in it, each named as its folder is. The
configuration of a trial holds the path; its axes, and so the tables, show the name.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zbench.spec import interpreters
from zbench.spec.axes import included, resolve_axes
from zbench.spec.problems import KeyPath, Problem
from zbench.spec.suggest import nearest
from zbench.spec.sweep import SweepSpec

KEY = "engine.engine_python"
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
        known: Mapping[str, str] = _of_directory(place / Path(environments).expanduser())
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
    return "/" in written or interpreters.executable(written, place).exists()


def _of_directory(place: Path) -> dict[str, str]:
    """Return name -> path of the environments in a directory, none where it is missing."""
    folders = sorted(place.iterdir()) if place.is_dir() else []
    return {folder.name: str(folder) for folder in folders if (folder / "bin" / "python").exists()}


def _unknown(written: str, known: list[str]) -> str:
    has = f"environments has {', '.join(known)}" if known else "environments holds none yet"
    return f"no environment is named {written!r}{nearest(written, known)}; {has}; name one, or give a path"
