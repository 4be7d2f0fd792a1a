"""What the ranks of a test run: which buckets compiled ZeRO-1 launches, when, and in which order."""

from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tests.engine.compiled.cases import BASE, make
from tests.engine.compiled.lifetimes import build, gradients_of
from zbench.engine import Instruments, build_engine
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.spec.engine import EngineSpec


@dataclass
class Recorder:
    """Collectives that write down what they reduce."""

    inner: Collectives
    sizes: list[int] = field(default_factory=list)
    rank: int = field(init=False)
    world_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank, self.world_size = self.inner.rank, self.inner.world_size

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self.sizes.append(send.numel())
        return self.inner.reduce_scatter(send, out, tag)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def launches(group: dist.ProcessGroup, name: str) -> tuple[list[list[int]], list[int], list[int]]:
    """Return the sizes launched in each step, in order; all buckets; parameters in order of readiness."""
    model, batch = make(name)
    recorders: list[Recorder] = []

    def wrap(inner: Collectives) -> Collectives:
        recorders.append(Recorder(inner))
        return recorders[-1]

    spec = EngineSpec.model_validate({**BASE, "compile": "aot_eager", "allgather_bucket_size": 600})
    engine = build_engine(model, spec, group, instruments=Instruments(wrap_collectives=wrap))
    gradients = gradients_of(engine)
    ready: list[int] = []
    accept = gradients.accept

    def note(index: int, gradient: Tensor) -> None:
        ready.append(index)
        accept(index, gradient)

    gradients.accept = note  # type: ignore[method-assign]
    steps = []
    for step in range(2):
        recorders[0].sizes.clear()
        engine.backward(model(*batch(dist.get_rank(group), step)))
        steps.append(list(recorders[0].sizes))
        engine.step()
    buckets = [bucket.length for bucket in engine._core.optimizer.shard.layout.buckets]
    engine.close()
    return steps, buckets, ready


def launched_before_the_end(group: dist.ProcessGroup, name: str) -> tuple[int, int]:
    """Return how many buckets were launched when a backward's last gradient had arrived, and their number.

    Of the second step: which gradients a graph never yields is known once its backward has been compiled.
    """
    model, batch = make(name)
    engine, _ = build(group, model)
    gradients = gradients_of(engine)
    launched = 0
    finish = gradients.finish

    def look() -> None:
        nonlocal launched
        launched = gradients.reducer._next
        finish()

    gradients.finish = look  # type: ignore[method-assign]
    for step in range(2):
        engine.backward(model(*batch(dist.get_rank(group), step)))
        engine.step()
    buckets = len(engine._core.optimizer.shard.layout.buckets)
    engine.close()
    return launched, buckets


def launched_by_each_backward(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[list[list[int]], int]:
    """Return how many buckets each backward launched, by step, and the number of buckets."""
    model, batch = make("two_graphs_share_a_parameter")
    recorders: list[Recorder] = []

    def wrap(inner: Collectives) -> Collectives:
        recorders.append(Recorder(inner))
        return recorders[-1]

    parsed = EngineSpec.model_validate({**BASE, "compile": "aot_eager", **spec})
    engine = build_engine(model, parsed, group, instruments=Instruments(wrap_collectives=wrap))
    marks = parsed.accumulation_mode == "multi_backward"
    counts: list[list[int]] = []
    for step in range(2):
        counts.append([])
        for micro in range(3):
            recorders[0].sizes.clear()
            engine.backward(
                model(*batch(dist.get_rank(group), step + 10 * micro)), last=micro == 2 if marks else None
            )
            counts[-1].append(len(recorders[0].sizes))
        engine.step()
    buckets = len(engine._core.optimizer.shard.layout.buckets)
    engine.close()
    return counts, buckets
