"""zbench: benchmark and tune ZeRO training configurations, each with a correctness verdict.

From Python: `load`, `sweep`, `compare` and `estimate` (`zbench.results`), `build_engine` and `EngineSpec`.
Each is imported when it is first used, so `import zbench` loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbench.engine import build_engine
    from zbench.results import Compared, Estimates, Results, compare, estimate, load, sweep
    from zbench.spec.engine import EngineSpec

__all__ = [
    "Compared",
    "EngineSpec",
    "Estimates",
    "Results",
    "build_engine",
    "compare",
    "estimate",
    "load",
    "sweep",
]
__version__ = "0.1.0"
_HOMES = {"build_engine": "zbench.engine", "EngineSpec": "zbench.spec.engine"}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` from its module."""
    if name not in __all__:
        raise AttributeError(f"module 'zbench' has no attribute {name!r}")
    import importlib

    if name == "estimate":  # a package that can be called
        return importlib.import_module("zbench.estimate")
    return getattr(importlib.import_module(_HOMES.get(name, "zbench.results")), name)


def __dir__() -> list[str]:
    """Return the names of this module, including those that are not imported yet."""
    return [*globals(), *__all__]
