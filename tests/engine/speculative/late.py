"""Runs in the pool's ranks: how much is ahead before backward ends, where collectives are done at once."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tests.engine.cases import when_backward_passes
from tests.engine.speculative.running import layers, loss, schedule_of
from zbench.engine import Instruments, build_engine
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.transport.works import Done
from zbench.spec.engine import EngineSpec


class Instant:
    """Collectives whose reductions are complete when they are launched; `waited`: for each launched one,
    whether somebody has waited for it.
    """

    def __init__(self, inner: Collectives) -> None:
        self._inner = inner
        self.waited = list[bool]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self._inner.reduce_scatter(send, out, tag).wait()
        self.waited.append(False)
        return Complete(self.waited, len(self.waited) - 1)


@dataclass
class Complete(Done):
    """The reduction number `number`."""

    waited: list[bool]
    number: int

    def wait(self) -> None:
        self.waited[self.number] = True


def left_for_later(group: dist.ProcessGroup, schedule: str) -> tuple[int, int]:
    """Return how many reductions were launched and not waited for, and how many subgroups were ahead, before
    the first layer's gradients came.
    """
    model = layers()
    spec = {
        "zero_stage": 1,
        "offload_optimizer": "cpu",
        "offload_schedule": schedule,
        "reduce_bucket_size": 4096,
    }
    instant: list[Instant] = []

    def wrap(inner: Collectives) -> Any:
        instant.append(Instant(inner))
        return instant[0]

    instruments = Instruments(wrap_collectives=wrap)
    engine = build_engine(model, EngineSpec.model_validate(spec), group, instruments=instruments)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        ahead = len(schedule_of(engine).ahead) if schedule == "speculative" else 0
        seen.append((instant[0].waited.count(False), ahead))

    model.between = {1: when_backward_passes(look)}
    engine.backward(loss(model))
    engine.step()
    engine.close()
    return seen[0]


def ahead_after_each(group: dist.ProcessGroup, stage: int) -> list[int]:
    """Return how many subgroups were ahead after each of a step's three backwards."""
    model = layers()
    counts = []
    spec = {"zero_stage": stage, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
    spec |= {"gradient_accumulation_steps": 3}
    engine = build_engine(model, EngineSpec.model_validate(spec), group)
    for k in range(3):
        engine.backward(loss(model, k))
        counts.append(len(schedule_of(engine).ahead))
    engine.step()
    engine.close()
    return counts
