"""Settings from outside the file: `--set KEY=VALUE`, and `ZBENCH_*` variables below them in precedence.

A variable is `ZBENCH_` and a key in capitals, with two underscores for each dot: `ZBENCH_WORLD_SIZE=4`,
`ZBENCH_OPTIMIZER__LR=1e-4`, `ZBENCH_SEARCH__TRIALS=20`. Keys are those of `--set`: any dotted key of the
file, or a bare name of workload, run or engine that is unambiguous. Setting a key that is an axis pins
that axis.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zbench.errors import SpecError, closest, nearest
from zbench.spec.document import parse_scalar
from zbench.spec.keys import SECTIONS, Path, assign, known_paths, nested_model, resolve_key
from zbench.spec.problems import key_text
from zbench.spec.sweep import SweepSpec

PREFIX = "ZBENCH_"
_TOP = tuple(SweepSpec.model_fields)


@dataclass(frozen=True, slots=True)
class Override:
    """One setting: where it came from (for messages), the path it sets, and the value."""

    origin: str
    path: tuple[str, ...]
    value: Any


def from_options(texts: Sequence[str]) -> list[Override]:
    """Read `KEY=VALUE` settings; SpecError for a missing `=`, an unknown key or a value that is not YAML."""
    settings = []
    for text in texts:
        origin = f"--set {text}"
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise SpecError("expected KEY=VALUE, such as --set zero_stage=1", file=origin)
        try:
            path = _path(key.strip())
        except ValueError as error:
            raise SpecError(str(error), file=origin, key=key.strip()) from None
        settings.append(Override(origin, *_meant(path, parse_scalar(value, origin))))
    return settings


def from_environment(environ: Mapping[str, str]) -> list[Override]:
    """Read the variables that name a key; one that nearly does is an error, any other is not ours."""
    settings = []
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        try:
            path = _path(key)
        except ValueError as error:
            if "." in key or closest(key, {path[-1] for path in known_paths()}, cutoff=0.8):
                raise SpecError(f"{error}; rename or unset this variable", file=name) from None
            continue
        settings.append(Override(name, *_meant(path, parse_scalar(environ[name], name))))
    return settings


def _path(key: str) -> Path:
    """Return the path in a sweep file that a key names."""
    parts = tuple(key.split("."))
    if parts[0] in SECTIONS and len(parts) > 1:
        return resolve_key(key)
    if parts[0] in _TOP:
        return _top_path(parts)
    try:
        return resolve_key(key)
    except ValueError as error:
        hint = nearest(key, _TOP) if "did you mean" not in str(error) else ""
        raise ValueError(str(error).split(";")[0] + hint) from None


def _top_path(parts: Path) -> Path:
    """Return the path of a key outside workload, run and engine; an axis's name may itself hold dots."""
    head = parts[0]
    if len(parts) == 1:
        return parts
    if head == "axes":
        return (head, ".".join(parts[1:]))
    model = nested_model(SweepSpec.model_fields[head].annotation)
    if model is None:
        raise ValueError(f"{head} holds no further keys; write {head}=VALUE")
    if parts[1] not in model.model_fields:
        raise ValueError(f"unknown key {parts[1]!r}{nearest(parts[1], model.model_fields)} in {head}")
    return parts


def _meant(path: Path, value: Any) -> tuple[Path, Any]:
    """Read `engine=ddp` as the key `engine` of the section of that name."""
    return (("engine", "engine"), value) if path == ("engine",) and isinstance(value, str) else (path, value)


def apply(data: dict[str, Any], overrides: Sequence[Override]) -> dict[tuple[str | int, ...], str]:
    """Set each override in `data`, in place, later ones last; return path -> origin for messages."""
    origins: dict[tuple[str | int, ...], str] = {}
    for override in overrides:
        for path, value in _targets(data, override):
            _check_blocks(data, path, override)
            assign(data, path, value)
            origins[path] = override.origin
    return origins


def _targets(data: dict[str, Any], override: Override) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what an override sets: its own path, and the axis of the same key, which it pins."""
    if override.path[0] == "axes" and len(override.path) == 2:
        yield ("axes", _written_name(data, override.path[1]) or override.path[1]), override.value
        return
    yield override.path, override.value
    if override.path[0] in SECTIONS:
        name = _written_name(data, ".".join(override.path))
        if name is not None:
            yield ("axes", name), [override.value]


def _written_name(data: Mapping[str, Any], key: str) -> str | None:
    """Return how the file writes the axis that `key` names, if it has that axis."""
    axes, wanted = data.get("axes"), _resolved(key)
    if wanted is None or not isinstance(axes, Mapping):
        return None
    return next((str(name) for name in axes if _resolved(str(name)) == wanted), None)


def _resolved(key: str) -> Path | None:
    try:
        return resolve_key(key)
    except ValueError:
        return None


def _check_blocks(data: dict[str, Any], path: tuple[str, ...], override: Override) -> None:
    """Refuse to set a key inside something that is no mapping."""
    block: Any = data
    for depth, part in enumerate(path[:-1]):
        block = block.get(part, {})
        if not isinstance(block, dict):
            message = "is not a mapping in the file, so nothing can be set in it; correct the file"
            raise SpecError(message, file=override.origin, key=key_text(path[: depth + 1]))
