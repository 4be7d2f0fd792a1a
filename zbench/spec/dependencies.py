"""Keys that act only where another key has certain values; read by refusals and by the search space."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from zbench.spec.engine import EngineSpec, OptimizerSpec
from zbench.spec.keys import Path


@dataclass(frozen=True, slots=True)
class Dependency:
    """`key` acts only where `on` holds one of `values`.

    refusal: the reason and remedy told where `key` differs from its default without acting; None where such
    a value is accepted and has no effect.
    """

    key: Path
    on: Path
    values: frozenset[Any]
    refusal: str | None = None


def _engine(key: str, on: str, *values: Any, refusal: str | None = None) -> Dependency:
    return Dependency(("engine", *key.split(".")), ("engine", *on.split(".")), frozenset(values), refusal)


DEPENDENCIES = (
    _engine("offload_param", "zero_stage", 3,
            refusal="offload_param needs sharded parameters; set zero_stage: 3 or offload_param: none"),
    _engine("offload_optimizer", "zero_stage", 1, 2, 3,
            refusal="offload_optimizer needs a sharded optimizer state; set zero_stage: 1, 2 or 3,"
            " or offload_optimizer: none"),
    _engine("shard_group_size", "zero_stage", 1, 2, 3,
            refusal="shard_group_size: groups ranks that share shards; stage 0 has none; set zero_stage: 1, 2"
            " or 3, or leave shard_group_size out"),
    _engine("leaf_modules", "zero_stage", 3,
            refusal="leaf_modules: names what is gathered whole, and only stage 3 gathers; set zero_stage: 3"
            " or leave leaf_modules out"),
    _engine("offload_schedule", "offload_optimizer", "cpu",
            refusal="the speculative schedule updates on the CPU; set offload_optimizer: cpu"
            " or offload_schedule: after_backward"),
    _engine("offload_ratio", "offload_optimizer", "cpu",
            refusal="offload_ratio divides the state of an offloaded optimizer; set offload_optimizer: cpu"
            " or offload_ratio: 1"),
    _engine("rollback", "offload_schedule", "speculative",
            refusal="a rollback journal serves speculation only; set offload_schedule: speculative"
            " or rollback: double_buffer"),
    _engine("compile", "zero_stage", 1,
            refusal="compile puts stage 1's reductions into the backward graph; set zero_stage: 1"
            " or compile: off"),
    _engine("optimizer.moments_rounding", "optimizer.moments_dtype", "bfloat16",
            refusal="float32 moments need no stochastic rounding; set moments_dtype: bfloat16"
            " or moments_rounding: nearest"),
    _engine("optimizer_threads", "offload_optimizer", "cpu"),
    _engine("prefetch_bucket_size", "zero_stage", 3),
    _engine("param_persistence_threshold", "zero_stage", 3),
    _engine("allgather_bucket_size", "zero_stage", 1, 2, 3),
    _engine("initial_loss_scale", "dtype", "float16"),
    _engine("loss_scale_window", "dtype", "float16"),
)  # fmt: skip


@cache
def dependency_of(key: Path) -> Dependency | None:
    """Return what must hold for `key` to act, or None where it always acts."""
    return next((one for one in DEPENDENCIES if one.key == key), None)


def acts(engine: EngineSpec, key: Path) -> bool:
    """Tell whether `key` has an effect in this configuration, whatever its value."""
    need = dependency_of(key)
    return need is None or _held(engine, need.on) in need.values


def differs(engine: EngineSpec, key: Path) -> bool:
    """Tell whether `key` has another value than its default."""
    return bool(_held(engine, key) != _held(_defaults(), key))


def refusals(engine: EngineSpec) -> Iterator[tuple[str, str]]:
    """Yield each key that was changed from its default although it cannot act, with reason and remedy."""
    for need in DEPENDENCIES:
        if need.refusal is not None and differs(engine, need.key) and not acts(engine, need.key):
            yield ".".join(need.key), need.refusal


def _held(engine: EngineSpec, path: Path) -> Any:
    """Return a key's value; read from the model itself, since to dump it takes a fifth of a large plan."""
    value: Any = engine
    for part in path[1:]:
        value = getattr(value, part)
    return value


@cache
def _defaults() -> EngineSpec:
    return EngineSpec()


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
