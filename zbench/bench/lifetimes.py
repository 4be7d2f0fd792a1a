"""One rank of compiled ZeRO-1 whose memory peaks in the optimizer update, to measure what reductions hold.

Run by `zbench.bench.compiled` and `zbench.bench.gpu.compiled`; answers `go N` on standard input like
`zbench.bench.contender`. MODE is `released` (the engine as it is) or `held`: buckets are kept through the
step, and reduction targets exist beside the optimizer's float32 partition, as before memory was step-local.
The fused update needs no memory of its own, so it is given temporaries, as an unfused optimizer has. In the
environment: DEVICE (cpu), LOWERING (inductor), BESIDE (bytes of the temporaries).
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import zbench.measure.shim  # noqa: F401 - before torch

# isort: split
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.bench.training import random_tokens, seeded_gpt
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.adam import AdamBackend, AdamTask
from zbench.engine.compiled.sink import CompiledGradients
from zbench.measure.memory import choose_meter
from zbench.spec.engine import EngineSpec
from zbench.worker.loop import Fence

TEMPORARIES = int(os.environ.get("BESIDE", 1 << 30))  # bytes; untouched, so on a CPU address space only
DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))


@dataclass
class HungryAdam:
    """Adam with temporaries of `beside` bytes; notes what the engine holds when they are there."""

    inner: AdamBackend
    engine: Engine | None = None
    beside: list[int] = field(default_factory=lambda: [TEMPORARIES])
    held: dict[str, int] = field(default_factory=dict)

    def update(
        self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0, nonfinite: Tensor | None = None
    ) -> None:
        temporaries = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in self.beside]
        if self.engine is not None:
            self.held = self.engine.memory_by_category()
        self.inner.update(tasks, grad_scale=grad_scale, nonfinite=nonfinite)
        del temporaries

    def chunk_square_sums(self, grads: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        self.inner.chunk_square_sums(grads, out)


def build(layers: int, width: int, length: int, *, held: bool) -> tuple[Engine, HungryAdam]:
    """Return the engine and its Adam."""
    adams: list[HungryAdam] = []

    def wrap(inner: AdamBackend) -> AdamBackend:
        adams.append(HungryAdam(inner))
        return adams[-1]

    spec = EngineSpec.model_validate(
        {
            "zero_stage": 1,
            "compile": os.environ.get("LOWERING", "inductor"),
            "reduce_bucket_size": 5_000_000,
        }
    )
    model = seeded_gpt(layers, width, length=length).to(DEVICE)
    engine = build_engine(model, spec, instruments=Instruments(wrap_adam=wrap))
    adam = adams[-1]
    adam.engine = engine
    if held:
        CompiledGradients.release_buckets = lambda self: None  # type: ignore[method-assign]
        adam.beside.append(engine.checked_state().shard.length * 4)
    return engine, adam


def main(mode: str, layers: int, width: int, micro_batch: int, length: int) -> None:
    """Serve `go N` until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meter, inexact = choose_meter(DEVICE)
    assert inexact is None, inexact
    engine, adam = build(layers, width, length, held=mode == "held")
    data, fence, done = random_tokens(micro_batch, length=length), Fence(DEVICE), 0
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            batch = [tensor.to(DEVICE) for tensor in data.micro_batch(done)]
            meter.reset()
            begin = fence.ready()
            engine.backward(engine.model(*batch))
            engine.step()
            seconds.append(fence.slowest(begin))
            done += 1
        answer = {
            "peak_bytes": meter.peak(),
            "partition_bytes": engine.checked_state().shard.length * 4,
            "bucket_bytes": adam.held.get("buckets", 0),
            "seconds": seconds,
        }
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
