"""What two ranks do, for `test_adding`; runs inside the pool's ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.plain import PlainTrainer, padded
from tests.engine.safety.plainly import build
from tests.engine.safety.test_adding import Adapter, Net
from tests.engine.steps.agreeing import heard


def loss(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0]).square().mean()


def part(number: int, rank: int) -> tuple[Tensor, ...]:
    return (torch.randn(5, 13, generator=torch.Generator().manual_seed(10 * number + rank)),)


def adds(group: dist.ProcessGroup, row: dict[str, Any]) -> bool:
    """Add a module whose values differ between ranks; whether all steps are those of plain PyTorch."""
    rank, engine = dist.get_rank(group), build(Net(), row, group)
    plain = PlainTrainer(Net(), world_size=2, optimizer={"lr": 1e-3})

    def step(number: int) -> bool:
        engine.backward(loss(engine.model, part(number, rank)))
        engine.step()
        plain.step(loss, [[part(number, r) for r in range(2)]])
        values = engine.full_parameters()
        return all(torch.equal(values[n], v) for n, v in plain.trajectory().parameters.items())

    same = [step(0), step(1)]
    engine.model.adapter, plain.model.adapter = Adapter(6 + rank), Adapter(6)
    engine.optimizer.add_param_group({"params": engine.model.adapter.parameters(), "lr": 5e-3})
    new = {n: p for n, p in plain.model.named_parameters() if n.startswith("adapter")}
    plain.names = [n for n, _ in plain.model.named_parameters()]
    plain.masters |= {n: nn.Parameter(padded(p)) for n, p in new.items()}
    plain.optimizer.add_param_group({"params": [plain.masters[n] for n in new], "lr": 5e-3})
    assert torch.equal(engine.model.adapter.scale, plain.model.adapter.scale)
    same += [step(2), step(3)]
    engine.close()
    return all(same)


def adds_others(group: dist.ProcessGroup, row: dict[str, Any]) -> str:
    """Each rank adds a parameter of its own."""
    rank, engine = dist.get_rank(group), build(Net(), row, group)
    engine.model.one, engine.model.two = nn.Linear(3, 3), nn.Linear(3, 3)
    mine = (engine.model.one, engine.model.two)[rank]
    said = heard(lambda: engine.optimizer.add_param_group({"params": mine.parameters()}))
    del engine.model.one, engine.model.two
    engine.backward(loss(engine.model, part(0, rank)))
    engine.step()
    engine.close()
    return said
