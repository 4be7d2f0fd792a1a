"""What two ranks do, for `test_rebuilding`; runs inside the pool's ranks."""

from typing import Any

import torch
import torch.distributed as dist

from tests.engine.plain import PlainTrainer
from tests.engine.safety.faults import ALLOCATIONS, Faults, build_watched
from tests.engine.safety.plainly import SMALL, build
from tests.engine.safety.test_freezing import Layers, freeze
from tests.engine.steps.agreeing import heard
from zbench.spec.engine import EngineSpec


def part(number: int, rank: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(5, 13, generator=torch.Generator().manual_seed(10 * number + rank)),)


def lacks_memory(group: dist.ProcessGroup, row: dict[str, Any]) -> list[str]:
    """Unfreeze a layer while rank 1 cannot allocate; return what is heard until it can, and train on."""
    rank, faults = dist.get_rank(group), Faults(*ALLOCATIONS)
    spec = EngineSpec.model_validate({**SMALL, **row})
    engine, exchanged = build_watched(Layers((3,)), spec, faults, group)
    plain = PlainTrainer(Layers((3,)), world_size=2, optimizer={"lr": 1e-3})
    said: list[str] = []
    for number, trained in enumerate([(3,), (2, 3), (2, 3)]):
        for net in (engine.model, plain.model):
            freeze(net, trained)
        loss = engine.model(part(number, rank)[0]).square().mean()
        while True:
            faults.at = len(said) if rank == 1 else None
            text = heard(lambda loss=loss: engine.backward(loss))
            if text == "nothing":
                break
            said.append(text)
        engine.step()
        plain.step(lambda net, data: net(data[0]).square().mean(), [[part(number, r) for r in range(2)]])
    assert len(exchanged) == 1
    values = engine.full_parameters()
    assert all(torch.equal(values[n], v) for n, v in plain.trajectory().parameters.items())
    engine.close()
    return said


def other_layers(group: dist.ProcessGroup, row: dict[str, Any], when: str) -> str:
    """Each rank trains a layer of its own, from the beginning or later."""
    own = 1 + dist.get_rank(group)
    if when == "at first":
        return heard(lambda: build(Layers((own, 3)), row, group))
    engine = build(Layers((3,)), row, group)
    freeze(engine.model, (own, 3))
    said = heard(lambda: engine.backward(engine.model(part(0, 0)[0]).square().mean()))
    freeze(engine.model, (3,))
    engine.backward(engine.model(part(0, 0)[0]).square().mean())
    engine.step()
    engine.close()
    return said
