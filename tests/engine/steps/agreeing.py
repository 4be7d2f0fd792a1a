"""What ranks do in the tests of ranks that disagree; every case returns what this rank heard."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import Engine, build_engine
from zbench.engine.assembly import build
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.transport import agreement, choose
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.spec.engine import EngineSpec

WIDTH = 32


class Routed(nn.Module):
    """Two experts and what is around them; `order` says which are called, and when. The sizes may differ."""

    def __init__(self, inner: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, k), nn.Linear(k, WIDTH)) for k in (WIDTH, inner)
        )

    def forward(self, x: Tensor, order: tuple[int, ...] = (0, 1)) -> Tensor:
        x = self.first(x)
        for k in order:
            x = x + self.experts[k](x)
        return x


@contextmanager
def connected(group: dist.ProcessGroup, way: str, seconds: float = 60.0) -> Iterator[dist.ProcessGroup]:
    """Yield a group of the same ranks with its own deadline, that reads memory, goes by sockets or (backend)
    calls the backend's collectives, which carry nothing that could be checked.
    """
    options = group._get_backend(torch.device("cpu")).options
    before = options._timeout
    options._timeout = timedelta(seconds=seconds)
    probe = choose.probe_peers if way == "memory" else lambda group, memory: None
    try:
        with mock.patch.object(choose, "probe_peers", probe), mock.patch.object(agreement, "PATIENCE", 0.3):
            if way == "backend":
                with mock.patch.object(build, "choose_collectives", _by_the_backend):
                    yield group
            else:
                yield group
    finally:
        options._timeout = before


def _by_the_backend(group: dist.ProcessGroup, *_: object) -> ProcessGroupCollectives:
    return ProcessGroupCollectives(group, torch.device("cpu"))


def heard(call: Callable[[], object]) -> str:
    """Return the name and the words of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def stored(engine: Engine) -> list[Tensor]:
    """Return copies of what this rank keeps of the weights; no collective."""
    return [part["param"].clone() for _, part in sorted(engine.optimizer_parts().items())]


def _engine(group: dist.ProcessGroup, model: nn.Module, **keys: Any) -> Engine:
    spec = {"zero_stage": 3, "param_persistence_threshold": 0, "prefetch_bucket_size": 1, **keys}
    return build_engine(model, EngineSpec.model_validate(spec), group)


def other_order(group: dist.ProcessGroup, way: str, inner: int, spec: dict[str, Any]) -> tuple[str, bool]:
    """The last rank calls its experts in the other order; return what is heard and whether weights stayed."""
    with connected(group, way) as mine:
        model = Routed(inner)
        last = dist.get_rank(group) == dist.get_world_size(group) - 1
        engine = _engine(mine, model, **spec)
        x = torch.ones(2, WIDTH)
        engine.backward(model(x).sum())
        engine.step()
        before = stored(engine)

        def step() -> None:
            engine.backward(model(x, (1, 0) if last else (0, 1)).square().sum())
            engine.step()

        message = heard(step)
        again = heard(step)
        same = all(torch.equal(a, b) for a, b in zip(before, stored(engine), strict=True))
        engine.close()
        return f"{message} | {again}", same


def one_reads(group: dist.ProcessGroup, way: str) -> str:
    """Rank 0 alone reads a weight, then all take a step."""
    with connected(group, way) as mine:
        model = Routed()
        engine = _engine(mine, model)

        def step() -> None:
            if dist.get_rank(group) == 0:
                model.experts[1][0].weight.sum()
            engine.backward(model(torch.ones(2, WIDTH)).sum())
            engine.step()

        message = heard(step)
        engine.close()
        return message


def one_raises(group: dist.ProcessGroup, way: str, where: str, stage: int) -> str:
    """Rank 0 alone raises before its backward, in it, or at a step without one, and leaves the engine."""
    with connected(group, way) as mine:
        model = Routed()
        alone = dist.get_rank(group) == 0
        engine = _engine(mine, model, zero_stage=stage)
        engine.backward(model(torch.ones(2, WIDTH)).sum())
        engine.step()

        def fail(gradient: Tensor) -> None:
            raise ValueError("in a hook")

        def step() -> None:
            loss = model(torch.ones(2, WIDTH)).sum()
            if alone and where == "before":
                # read as an attribute, it would be gathered
                next(model.parameters()).grad = torch.ones(WIDTH, WIDTH)
            if alone and where == "inside":
                loss.register_hook(fail)
            if not (alone and where == "without"):
                engine.backward(loss)
            engine.step()

        message = heard(step)
        dist.barrier(group)
        engine.close()
        return message


def one_stops(group: dist.ProcessGroup, way: str) -> str:
    """Rank 0 takes one backward more than the others before its step, reduced at each backward."""
    with connected(group, way, seconds=2.0) as mine:
        model = Routed()
        engine = _engine(mine, model, zero_stage=2, accumulation_mode="unmanaged", reduce_at="each_backward")

        def step() -> None:
            for _ in range(3 if dist.get_rank(group) == 0 else 2):
                engine.backward(model(torch.ones(2, WIDTH)).sum())
            engine.step()

        message = heard(step)
        engine.close()
        return message


def backend_of(group: dist.ProcessGroup, backend: str) -> str:
    """Return which collectives a group of that backend gets on the CPU."""
    everyone = list(range(dist.get_world_size()))
    mine = dist.new_group(everyone, backend=backend)
    assert isinstance(mine, dist.ProcessGroup)
    cpu = DeviceMemory(torch.device("cpu"))
    comm = choose.choose_collectives(mine, cpu, cpu)
    comm.close()
    return f"{dist.get_backend(mine)} {type(comm).__name__}"
