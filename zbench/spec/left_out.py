"""What an export has no place for: each engine key that is set, acts and is not carried is named."""

from collections.abc import Collection, Iterator, Mapping

from zbench.spec.dependencies import acts, differs
from zbench.spec.engine import EngineSpec, OptimizerSpec

_WHO_TRAINS = ("engine", "engine_python")  # an export is for another engine and interpreter
_KEYS = (
    *(key for key in EngineSpec.model_fields if key not in (*_WHO_TRAINS, "optimizer")),
    *(f"optimizer.{key}" for key in OptimizerSpec.model_fields),
)


def left_out(
    engine: EngineSpec, target: str, carried: Collection[str], why: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield a note for each key that differs from its default and that an export does not carry.

    carried: the keys, such as `zero_stage` and `optimizer.lr`, that it says or that have a note of their own.
    why: key -> what to say of it other than that `target` has no counterpart.
    """
    for key in _KEYS:
        path = ("engine", *key.split("."))
        if key not in carried and differs(engine, path) and acts(engine, path):
            reason = (why or {}).get(key)
            yield (
                f"engine.{key}: {reason}"
                if reason
                else f"engine.{key} has no counterpart in {target}; left out"
            )
