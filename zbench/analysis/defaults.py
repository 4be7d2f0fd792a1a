"""How far a configuration is from the defaults: the simpler of two equals is recommended. Pure."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from zbench.spec.engine import EngineSpec


def changed_keys(config: Mapping[str, Any]) -> int:
    """Return how many keys of `engine` differ from their defaults."""
    ours = dict(_leaves(config.get("engine") or {}))
    defaults = _defaults()
    return sum(defaults.get(key) != value for key, value in ours.items())


@cache
def _defaults() -> dict[str, Any]:
    return dict(_leaves(EngineSpec().model_dump(mode="json")))


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
