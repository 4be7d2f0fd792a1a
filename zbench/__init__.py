"""zbench: benchmark and tune ZeRO training configurations, each with a correctness verdict.

From Python: `load`, `sweep` and `compare` (see `zbench.results`), `build_engine` and `EngineSpec`. Each is
imported when it is first used, so `import zbench` loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbench.engine import build_engine
    from zbench.results import Compared, Results, compare, load, sweep
    from zbench.spec.engine import EngineSpec

__all__ = ["Compared", "EngineSpec", "Results", "build_engine", "compare", "load", "sweep"]
__version__ = "0.1.0"
_HOMES = {"build_engine": "zbench.engine", "EngineSpec": "zbench.spec.engine"}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` from its module."""
    if name not in __all__:
        raise AttributeError(f"module 'zbench' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "zbench.results")), name)


def __dir__() -> list[str]:
    """Return the names of this module, including those that are not imported yet."""
    return [*globals(), *__all__]
