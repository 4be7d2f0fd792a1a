"""Invalid combinations of engine keys, and keys that need another key; each with a reason and a remedy."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from zbench.spec.engine import EngineSpec
from zbench.spec.keys import Key


@dataclass(frozen=True, slots=True)
class Dependency:
    """`key` has an effect only if `on` has one of `values`. The search space uses this, too.

    refusal: the error message, with the remedy, if `key` differs from its default but has no effect; None if
    such a value is accepted and ignored.
    """

    key: Key
    on: Key
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
            refusal="leaf_modules: names modules to gather whole, and only stage 3 gathers; set zero_stage: 3"
            " or leave leaf_modules out"),
    _engine("offload_schedule", "offload_optimizer", "cpu",
            refusal="the speculative schedule updates on the CPU; set offload_optimizer: cpu"
            " or offload_schedule: after_backward"),
    _engine("offload_ratio", "offload_optimizer", "cpu",
            refusal="offload_ratio divides the state of an offloaded optimizer; set offload_optimizer: cpu"
            " or offload_ratio: 1"),
    _engine("rollback", "offload_schedule", "speculative",
            refusal="only speculation uses a rollback journal; set offload_schedule: speculative"
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


@dataclass(frozen=True, slots=True)
class Rule:
    """`is_broken_by` tells it of an engine configuration. `key` is the key to change."""

    key: str
    is_broken_by: Callable[[EngineSpec], bool]
    reason: str


SHARDED_BUILDERS = ("builtin", "fsdp2")
"""Engines that take a model whose values are in shards."""
_RULES = (
    Rule("engine.ds_config", lambda e: e.ds_config is not None and e.engine != "deepspeed",
         "a ds_config is DeepSpeed's; set engine: deepspeed, or leave it out"),
    Rule("engine.compile", lambda e: e.compile != "off" and e.offload_schedule == "speculative",
         "a compiled backward cannot be overlapped by speculation; set compile: off"
         " or offload_schedule: after_backward"),
    Rule("engine.compile", lambda e: e.compile != "off" and e.accumulation_mode == "unmanaged",
         "a compiled step must know its last backward; set accumulation_mode: micro_steps or multi_backward"),
    Rule("engine.compile", lambda e: e.compile != "off" and e.reduce_at == "each_backward",
         "a compiled step reduces gradients at the boundary; set reduce_at: auto or boundary"),
    Rule("engine.reduction", lambda e: e.compile != "off" and e.reduction == "rank_order",
         "a compiled step is held to no order of ranks; set reduction: auto, or compile: off"),
    Rule("engine.gradient_accumulation_steps",
         lambda e: e.accumulation_mode != "micro_steps" and e.gradient_accumulation_steps != 1,
         "only accumulation_mode: micro_steps counts micro-batches; set gradient_accumulation_steps: 1 and"
         " use workload.backwards_per_step, or set accumulation_mode: micro_steps"),
    Rule("engine.grad_accum_dtype", lambda e: e.grad_accum_dtype == "float16" and e.dtype != "float16",
         "float16 accumulation needs loss scaling; set dtype: float16 or another grad_accum_dtype"),
    Rule("engine.communication_dtype", lambda e: e.communication_dtype == "float16" and e.dtype != "float16",
         "float16 reduction needs loss scaling; set dtype: float16 or another communication_dtype"),
    Rule("engine.build", lambda e: e.build == "sharded" and e.engine not in SHARDED_BUILDERS,
         "only builtin and fsdp2 take a model in shards; set build: whole, or engine: builtin"),
    Rule("engine.param_groups", lambda e: "*" in e.param_groups and e.param_groups["*"].frozen,
         "the pattern '*' freezes every parameter, so there is nothing to train; name those to freeze"),
)  # fmt: skip


_BY_KEY = {dependency.key: dependency for dependency in DEPENDENCIES}
_DEFAULTS = EngineSpec()


def dependency_of(key: Key) -> Dependency | None:
    """Return the condition under which `key` has an effect, or None if it always has one."""
    return _BY_KEY.get(key)


def value_of(engine: EngineSpec, key: Key) -> Any:
    """Return the value of a key such as ("engine", "optimizer", "lr")."""
    return attrgetter(".".join(key[1:]))(engine)


def acts(engine: EngineSpec, key: Key) -> bool:
    """Return whether `key` has an effect in this configuration, at any value."""
    need = dependency_of(key)
    return need is None or value_of(engine, need.on) in need.values


def differs(engine: EngineSpec, key: Key) -> bool:
    """Return whether the value of `key` differs from its default."""
    return bool(value_of(engine, key) != value_of(_DEFAULTS, key))


def refusals(engine: EngineSpec) -> Iterator[tuple[str, str]]:
    """Yield (key, reason and remedy) for each key that differs from its default but has no effect."""
    for need in DEPENDENCIES:
        if need.refusal is not None and differs(engine, need.key) and not acts(engine, need.key):
            yield ".".join(need.key), need.refusal


def advice(engine: EngineSpec) -> str | None:
    """Return why a valid configuration of zbench's engine gains nothing, with the remedy; None for others."""
    alone = engine.offload_param == "cpu" and engine.offload_optimizer == "none"
    if engine.engine == "builtin" and alone:
        return (
            "offload_param: cpu saves no memory without offload_optimizer: cpu, because the float32 master"
            " weights stay on the device; set both"
        )
    return None


def broken(rules: Iterable[Rule], engine: EngineSpec) -> Iterator[tuple[str, str]]:
    """Yield (key to change, reason) for each rule that a configuration breaks."""
    return ((rule.key, rule.reason) for rule in rules if rule.is_broken_by(engine))


def engine_conflicts(engine: EngineSpec) -> Iterator[tuple[str, str]]:
    """Yield (key to change, reason and remedy) for each invalid combination of engine keys."""
    yield from refusals(engine)
    yield from broken(_RULES, engine)
