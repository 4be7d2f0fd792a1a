"""Gradient accumulation: how many backwards make a step, in which order they are added, and what
`workload.global_batch_size` makes of it.
"""

from dataclasses import dataclass
from typing import Any

from zbench.spec.engine import EngineSpec
from zbench.spec.workload import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Accumulation:
    """One optimizer step of one rank.

    backwards: micro-batches a step. averaged_over: what the engine divides their sum by; where it does not
    count them (1), the caller divides each loss by `backwards`. each_backward: ranks are added before
    micro-batches are.
    """

    backwards: int
    averaged_over: int
    each_backward: bool

    @property
    def loss_divisor(self) -> int:
        """What the caller divides each loss by, so that every mode trains on the mean over micro-batches."""
        return self.backwards // self.averaged_over


def accumulation(engine: EngineSpec, workload: WorkloadSpec) -> Accumulation:
    """Return how a trial accumulates. With one backward a step both orders of summation are the same.

    `reduce_at: auto` is the boundary at stage 1, with offload too, so that offload changes no bit.
    """
    counted = engine.accumulation_mode == "micro_steps"
    backwards = engine.gradient_accumulation_steps if counted else workload.backwards_per_step
    each = engine.zero_stage >= 2 if engine.reduce_at == "auto" else engine.reduce_at == "each_backward"
    return Accumulation(backwards, backwards if counted else 1, each and backwards > 1)


KEY = "workload.global_batch_size"


def with_accumulation(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose accumulation fits `global_batch_size`; unchanged where that is not set.

    ValueError, with the remedy, where no whole number of micro-batches fits or another number is asked for.
    """
    workload, engine = config["workload"], config["engine"]
    total = workload.get("global_batch_size")
    if total is None:
        return config
    size, ranks = workload["micro_batch_size"], config["run"]["world_size"]
    if total % (size * ranks):
        raise ValueError(
            f"{total} is no multiple of micro_batch_size x world_size ({size} x {ranks} = {size * ranks});"
            " change one of them"
        )
    steps = total // (size * ranks)
    counted = engine["accumulation_mode"] == "micro_steps"
    section, key = (
        ("engine", "gradient_accumulation_steps") if counted else ("workload", "backwards_per_step")
    )
    if config[section][key] not in (1, steps):
        raise ValueError(
            f"{total} over {ranks} ranks of {size} takes {key}: {steps}, got {config[section][key]};"
            f" leave {key} out, it follows from global_batch_size"
        )
    return {**config, section: {**config[section], key: steps}}
