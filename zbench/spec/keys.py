"""The keys that axes, `exclude` and overrides may use, and the values that each accepts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from zbench.errors import closest, nearest
from zbench.spec.base import SpecModel
from zbench.spec.engine import EngineSpec, ParamGroupSpec
from zbench.spec.run import RunSpec
from zbench.spec.workload import WorkloadSpec

Key = tuple[str, ...]
SECTIONS: dict[str, type[SpecModel]] = {"workload": WorkloadSpec, "run": RunSpec, "engine": EngineSpec}
PARAMETERS: Key = ("workload", "parameters")
_OPTIONS: Key = ("workload", "options")
_GROUPS: Key = ("engine", "param_groups")
_VAGUE = ("name", "text", "synthetic")  # unambiguous, but unclear in the heading of a table


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every leaf; an empty block is a leaf."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a field's annotation (such as `Model | None`), or None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return next((model for part in get_args(annotation) if (model := nested_model(part))), None)
    return None


@cache
def known_paths() -> tuple[Key, ...]:
    """Return the path of every key of workload, run and engine; blocks such as `engine.optimizer`, too."""
    paths: list[Key] = []

    def walk(model: type[BaseModel], prefix: Key) -> None:
        for name, field in model.model_fields.items():
            paths.append((*prefix, name))
            inner = nested_model(field.annotation)
            if inner is not None:
                walk(inner, (*prefix, name))

    for section, model in SECTIONS.items():
        walk(model, (section,))
    return tuple(paths)


def is_parameter(path: Sequence[str]) -> bool:
    """Return whether a path is that of one of `workload.parameters`."""
    return len(path) == 3 and tuple(path[:2]) == PARAMETERS


def resolve_key(key: str, parameters: Collection[str] = ()) -> Key:
    """Return the path of a bare or dotted key. ValueError if none or several match.

    parameters: names of `workload.parameters`; a name that is a key of zbench, too, is written
    `parameters.NAME`.
    """
    parts = tuple(key.split("."))
    if parts in known_paths():
        return parts
    matches = [path for path in known_paths() if path[-len(parts) :] == parts]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(
            f"{key!r} could be {' or '.join('.'.join(path) for path in matches)}; write it in full"
        )
    if key in parameters:
        return (*PARAMETERS, key)
    for free in (PARAMETERS, _OPTIONS, _GROUPS):
        for head in (free, free[1:]):
            if parts[: len(head)] == head:
                rest = parts[len(head) :]
                if free == _GROUPS and len(rest) > 1 and rest[-1] in ParamGroupSpec.model_fields:
                    return (*free, ".".join(rest[:-1]), rest[-1])  # a parameter pattern may contain dots
                return (*free, ".".join(rest))
    hint = _nearest_key(key, parameters)
    raise ValueError(
        f"unknown key {key!r}{hint}; name a key of workload, run or engine, or a flag of workload.parameters"
    )


def _nearest_key(key: str, parameters: Collection[str]) -> str:
    leaf = key.rpartition(".")[2]
    nearest_leaf = closest(leaf, {*parameters, *(path[-1] for path in known_paths())})
    if nearest_leaf in parameters:
        return f" (did you mean {nearest_leaf!r}?)"
    if nearest_leaf is None:
        return nearest(key, [".".join(path) for path in known_paths()])
    path = next(path for path in known_paths() if path[-1] == nearest_leaf)
    return f" (did you mean {short_name(path)!r}?)"


@cache
def short_name(path: Key) -> str:
    """Return the shortest unambiguous ending of a path, such as `zero_stage`."""
    if is_parameter(path) and all(known[-1] != path[-1] for known in known_paths()):
        return path[-1]
    for length in range(2 if path[-1] in _VAGUE else 1, len(path)):
        ending = ".".join(path[-length:])
        try:
            if resolve_key(ending) == path:
                return ending
        except ValueError:
            continue
    return ".".join(path)


def model_at(path: Sequence[str | int], model: type[BaseModel]) -> type[BaseModel]:
    """Return the model that has the last part of a path as a field, starting at `model`."""
    for part in path[:-1]:
        field = model.model_fields.get(str(part))
        if field is not None:
            arguments = get_args(field.annotation)  # of a mapping such as dict[str, ParamGroupSpec]
            mapped = nested_model(arguments[1]) if len(arguments) == 2 else None
            model = nested_model(field.annotation) or mapped or model
    return model


def field_of(path: Key) -> FieldInfo:
    """Return the field of a key that is not free-form."""
    return model_at(path[1:], SECTIONS[path[0]]).model_fields[path[-1]]


@cache
def holder(path: Key) -> type[BaseModel] | None:
    """Return a model whose only field is the last part of `path`; None for a free-form option."""
    if path[:2] == _OPTIONS and len(path) == 3:
        return None
    if path[:2] == _GROUPS and len(path) == 3:
        return create_model("Group", __base__=SpecModel, **{path[-1]: (ParamGroupSpec, ...)})  # type: ignore[call-overload,no-any-return]
    field = field_of(path)
    return create_model("Value", __base__=SpecModel, **{path[-1]: (field.annotation, field)})  # type: ignore[call-overload,no-any-return]


def canonical_value(path: Key, value: Any) -> Any:
    """Return a value as plain JSON in canonical form (`5e6` is 5000000). ValidationError if it is invalid."""
    if is_parameter(path):
        return canonical_value(PARAMETERS, {path[-1]: value})[path[-1]]
    model = holder(path)
    if model is None:
        return value
    return model.model_validate({path[-1]: value}).model_dump(mode="json")[path[-1]]


def value_at(config: Mapping[str, Any], path: Key) -> Any:
    """Return the value at a path of a configuration, or None if it is missing."""
    value: Any = config
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def assign(config: dict[str, Any], path: Key, value: Any) -> None:
    """Set one key in place and create missing blocks. `data.text` and `data.synthetic` replace each other.

    A mapping of `workload.parameters` sets the parameters that it names, and leaves the rest.
    """
    block = config
    for part in path[:-1]:
        if not isinstance(block.get(part), dict):
            block[part] = {}
        block = block[part]
    if path == PARAMETERS and isinstance(value, dict):
        value = {**(block.get(path[-1]) or {}), **value}
    block[path[-1]] = value
    if path == ("workload", "data", "text") and value is not None:
        block.pop("synthetic", None)
    if path == ("workload", "data", "synthetic") and value:
        block.pop("text", None)
