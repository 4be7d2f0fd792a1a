"""What the ranks of a test run: when compiled ZeRO-1 gets gradients, and when it launches buckets."""

from unittest import mock

import torch.distributed as dist
from torch import Tensor

from tests.engine.compiled.cases import BASE, make, recorded
from zbench.engine.compiled.sink import CompiledGradients
from zbench.spec.engine import EngineSpec


def readiness(group: dist.ProcessGroup, name: str) -> tuple[list[int], list[int], list[int]]:
    """Return the parameters in order of readiness, the buckets that were launched when the last gradient had
    arrived, and all that were launched.

    Of the second backward: which gradients a graph never yields is known once its backward has been compiled.
    """
    model, batch = make(name)
    engine, recorder = recorded(group, model, EngineSpec.model_validate({**BASE, "compile": "aot_eager"}))
    ready: list[int] = []
    before: list[int] = []
    accept, finish = CompiledGradients.accept, CompiledGradients.finish

    def note(gradients: CompiledGradients, index: int, gradient: Tensor) -> None:
        ready.append(index)
        accept(gradients, index, gradient)

    def look(gradients: CompiledGradients) -> None:
        before.extend(recorder.sizes)
        finish(gradients)

    with mock.patch.multiple(CompiledGradients, accept=note, finish=look):
        for step in range(2):
            for of_the_first in (ready, before, recorder.sizes):
                of_the_first.clear()
            engine.backward(model(*batch(dist.get_rank(group), step)))
            engine.step()
    engine.close()
    return ready, before, recorder.take()
