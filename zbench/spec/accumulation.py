"""How many backwards make a step, and in which order gradients are added."""

from dataclasses import dataclass

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
