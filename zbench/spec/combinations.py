"""Combinations that cannot exist, each with its reason and remedy. The first broken rule is reported."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from zbench.spec import shapes
from zbench.spec.dependencies import refusals
from zbench.spec.engine import EngineSpec
from zbench.spec.environments import executable
from zbench.spec.peers import peer_conflicts
from zbench.spec.run import RunSpec
from zbench.spec.workload import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """`applies` tells whether an engine configuration breaks the rule; `key` is the one to change."""

    key: str
    applies: Callable[[EngineSpec], bool]
    reason: str


def _speculates(e: EngineSpec) -> bool:
    return e.offload_schedule == "speculative"


_RULES = (
    Rule("engine.ds_config", lambda e: e.ds_config is not None and e.engine != "deepspeed",
         "a ds_config is DeepSpeed's; set engine: deepspeed, or leave it out"),
    Rule("engine.compile", lambda e: e.compile != "off" and _speculates(e),
         "a compiled backward cannot be overlapped by speculation; set compile: off"
         " or offload_schedule: after_backward"),
    Rule("engine.compile", lambda e: e.compile != "off" and e.accumulation_mode == "unmanaged",
         "a compiled step must know its last backward; set accumulation_mode: micro_steps or multi_backward"),
    Rule("engine.compile", lambda e: e.compile != "off" and e.reduce_at == "each_backward",
         "a compiled step reduces at the boundary; set reduce_at: auto or boundary"),
    Rule("engine.gradient_accumulation_steps",
         lambda e: e.accumulation_mode != "micro_steps" and e.gradient_accumulation_steps != 1,
         "only accumulation_mode: micro_steps counts; set gradient_accumulation_steps: 1 and use"
         " workload.backwards_per_step, or accumulation_mode: micro_steps"),
    Rule("engine.grad_accum_dtype", lambda e: e.grad_accum_dtype == "float16" and e.dtype != "float16",
         "float16 accumulation needs loss scaling; set dtype: float16 or another grad_accum_dtype"),
    Rule("engine.communication_dtype", lambda e: e.communication_dtype == "float16" and e.dtype != "float16",
         "float16 reduction needs loss scaling; set dtype: float16 or another communication_dtype"),
    Rule("engine.param_groups", lambda e: "*" in e.param_groups and e.param_groups["*"].frozen,
         "the pattern '*' freezes every parameter, so there is nothing to train; name the ones to freeze"),
)  # fmt: skip


def engine_conflicts(engine: EngineSpec) -> Iterator[tuple[str, str]]:
    """Yield what an engine's keys cannot be together: the key to change, and the reason with its remedy."""
    yield from refusals(engine)
    yield from ((rule.key, rule.reason) for rule in _RULES if rule.applies(engine))


def conflict(
    engine: EngineSpec,
    run: RunSpec,
    workload: WorkloadSpec,
    place: Path | None = None,
) -> tuple[str, str] | None:
    """Return the key to change and the reason with its remedy, or None where the combination can exist.

    place: where relative paths of the sweep begin; None leaves other Python environments unexamined.
    """
    if workload.command is not None:
        return next(chain(refusals(engine), _command_conflicts(engine, place)), None)
    of_engine = chain(engine_conflicts(engine), peer_conflicts(engine, place))
    return next(chain(of_engine, _workload_conflicts(engine, run, workload, place)), None)


def _workload_conflicts(
    engine: EngineSpec, run: RunSpec, workload: WorkloadSpec, place: Path | None
) -> Iterator[tuple[str, str]]:
    if place is not None and workload.model.startswith(shapes.PREFIX):
        problem = shapes.mistake(workload.model, place)
        if problem:
            yield "workload.model", problem
    if workload.backwards_per_step > 1 and engine.accumulation_mode == "micro_steps":
        yield (
            "workload.backwards_per_step",
            "several backwards a step need accumulation_mode: multi_backward or unmanaged;"
            " with micro_steps set gradient_accumulation_steps instead",
        )
    if engine.shard_group_size is not None and run.world_size % engine.shard_group_size:
        yield (
            "engine.shard_group_size",
            f"{run.world_size} ranks do not divide into groups of {engine.shard_group_size};"
            " set a divisor of run.world_size, or leave shard_group_size out",
        )


def _command_conflicts(engine: EngineSpec, place: Path | None) -> Iterator[tuple[str, str]]:
    if engine.engine != "builtin":
        yield "engine.engine", "a command brings its own engine; leave engine out"
    if engine.engine_python is not None and place is not None:
        python = executable(engine.engine_python, place)
        if not os.access(python, os.X_OK):
            yield "engine.engine_python", f"{engine.engine_python}: no such interpreter; name an environment"
