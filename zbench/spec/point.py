"""One point of a sweep: the configuration that its values make, and how a table shows it."""

from collections.abc import Mapping, Sequence
from typing import Any

from zbench.spec.axes import Axis
from zbench.spec.keys import Path, assign, short_name, value_at
from zbench.spec.sweep import SweepSpec

Exclude = Mapping[Path, tuple[Any, ...]]
"""An `exclude` entry: path -> the values that match."""


def base_config(sweep: SweepSpec) -> dict[str, Any]:
    """Return the configuration that axes vary, as plain JSON values."""
    config: dict[str, Any] = sweep.model_dump(mode="json", include={"workload", "run", "engine", "verify"})
    return config


def configured(base: dict[str, Any], values: Mapping[Path, Any]) -> dict[str, Any]:
    """Return `base` with some keys set; blocks without one of these are shared with it."""
    config = dict(base)
    for path, value in values.items():
        block = config
        for part in path[:-1]:
            if not isinstance(block.get(part), dict):
                break
            block[part] = dict(block[part])
            block = block[part]
        assign(config, path, value)
    return config


def matches(config: Mapping[str, Any], entry: Exclude) -> bool:
    """Tell whether a configuration has one of an entry's values at each of its paths."""
    return all(value_at(config, path) in values for path, values in entry.items())


def shown_axes(config: Mapping[str, Any], values: Mapping[Path, Any], axes: Sequence[Axis]) -> dict[str, Any]:
    """Return what a table shows of an included point: every axis, and the keys that it sets."""
    shown = {axis.key: value_at(config, axis.path) for axis in axes}
    shown |= {short_name(path): value for path, value in values.items()}
    return {key: without_nulls(value) for key, value in shown.items()}


def without_nulls(value: Any) -> Any:
    """Return a block without the keys that say nothing, such as those a parameter group inherits."""
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
