"""How far a configuration is from the defaults: the simpler of two equals is recommended. Pure."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from zbench.spec.engine import EngineSpec
from zbench.spec.keys import leaves


def changed_keys(config: Mapping[str, Any]) -> int:
    """Return how many keys of `engine` differ from their defaults."""
    ours = dict(leaves(config.get("engine") or {}))
    defaults = _defaults()
    return sum(defaults.get(key) != value for key, value in ours.items())


@cache
def _defaults() -> dict[str, Any]:
    return dict(leaves(EngineSpec().model_dump(mode="json")))
