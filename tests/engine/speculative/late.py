"""Runs in the pool's ranks: how much is ahead before backward ends, where collectives are done at once."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from tests.engine.speculative.running import layers, loss, schedule_of, when_backward_passes
from zbench.engine import Instruments, build_engine
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.transport.works import Done
from zbench.spec.engine import EngineSpec


class Instant:
    """Collectives whose reductions are complete when they are launched."""

    def __init__(self, inner: Collectives) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self._inner.reduce_scatter(send, out, tag).wait()
        return Done()


def left_for_later(group: dist.ProcessGroup, schedule: str) -> tuple[int, int]:
    """Return how many buckets had been launched and not landed, and subgroups ahead, before the first layer's
    gradients came.
    """
    model = layers()
    spec = {
        "zero_stage": 1,
        "offload_optimizer": "cpu",
        "offload_schedule": schedule,
        "reduce_bucket_size": 4096,
    }
    instruments = Instruments(wrap_collectives=Instant)  # type: ignore[arg-type]
    engine = build_engine(model, EngineSpec.model_validate(spec), group, instruments=instruments)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        ahead = len(schedule_of(engine)._ahead) if schedule == "speculative" else 0
        seen.append((len(engine._core.gradients.reducer._running), ahead))  # type: ignore[attr-defined]

    model.between = {1: when_backward_passes(look)}
    engine.backward(loss(model))
    engine.step()
    engine.close()
    return seen[0]
