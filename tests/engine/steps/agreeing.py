"""Cases of ranks that disagree or leave; every case returns the error that its rank raises.

Run as `python -m tests.engine.steps.agreeing STORE RANK WORLD`, the last rank raises outside the engine, and
the other ranks print the error that they raise then.
"""

import os
import sys
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
    """Two experts and what is around them; `order` says which are called, and when."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(2)
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


def is_last(group: dist.ProcessGroup) -> bool:
    return dist.get_rank(group) == dist.get_world_size(group) - 1


@contextmanager
def engine_on(
    group: dist.ProcessGroup, way: str, seconds: float = 60.0, **keys: Any
) -> Iterator[tuple[Engine, Callable[[], Tensor]]]:
    """Yield an engine of these ranks, and a function that returns a loss of its model."""
    with connected(group, way, seconds) as mine:
        spec = {"zero_stage": 3, "param_persistence_threshold": 0, "prefetch_bucket_size": 1, **keys}
        engine = build_engine(Routed(), EngineSpec.model_validate(spec), mine)
        yield engine, lambda: engine.model(torch.ones(2, WIDTH)).sum()
        if not engine.closed:
            engine.close()


def stored(engine: Engine) -> list[Tensor]:
    """Return copies of what this rank keeps of the weights; no collective."""
    return [part["param"].clone() for _, part in sorted(engine.optimizer_parts().items())]


def other_order(group: dist.ProcessGroup, way: str) -> tuple[str, bool]:
    """The last rank calls its experts in the other order; return what is heard and whether weights stayed."""
    with engine_on(group, way) as (engine, loss):
        engine.backward(loss())
        engine.step()
        before = stored(engine)

        def step() -> None:
            order = (1, 0) if is_last(group) else (0, 1)
            engine.backward(engine.model(torch.ones(2, WIDTH), order).square().sum())
            engine.step()

        messages = f"{heard(step)} | {heard(step)}"
        return messages, all(torch.equal(a, b) for a, b in zip(before, stored(engine), strict=True))


def one_reads(group: dist.ProcessGroup, way: str) -> str:
    """Rank 0 alone reads a weight, then all take a step."""
    with engine_on(group, way) as (engine, loss):

        def step() -> None:
            if dist.get_rank(group) == 0:
                engine.model.get_parameter("experts.1.0.weight").sum()
            engine.backward(loss())
            engine.step()

        return heard(step)


def one_raises(group: dist.ProcessGroup, way: str, where: str, stage: int) -> str:
    """Rank 0 alone raises inside its backward, or at a step without one, and leaves the engine."""
    alone = dist.get_rank(group) == 0

    def fail(gradient: Tensor) -> None:
        raise ValueError("in a hook")

    with engine_on(group, way, zero_stage=stage) as (engine, loss):

        def step() -> None:
            total = loss()
            if alone and where == "inside":
                total.register_hook(fail)
            if not (alone and where == "without"):
                engine.backward(total)
            engine.step()

        message = heard(step)
        dist.barrier(group)
        return message


def one_stops(group: dist.ProcessGroup, way: str) -> str:
    """Rank 0 takes one backward more than the others before its step, reduced at each backward."""
    keys = {"zero_stage": 2, "accumulation_mode": "unmanaged", "reduce_at": "each_backward"}
    with engine_on(group, way, seconds=2.0, **keys) as (engine, loss):

        def step() -> None:
            for _ in range(3 if dist.get_rank(group) == 0 else 2):
                engine.backward(loss())
            engine.step()

        return heard(step)


def backend_of(group: dist.ProcessGroup, backend: str) -> str:
    """Return which collectives a group of that backend gets on the CPU."""
    everyone = list(range(dist.get_world_size()))
    mine = dist.new_group(everyone, backend=backend)
    assert isinstance(mine, dist.ProcessGroup)
    cpu = DeviceMemory(torch.device("cpu"))
    comm = choose.choose_collectives(mine, cpu, cpu)
    comm.close()
    return f"{dist.get_backend(mine)} {type(comm).__name__}"


def leave(group: dist.ProcessGroup, way: str, how: str, stage: int) -> str:
    """Return the error of a rank when the last rank leaves before its third forward."""
    hears = mock.patch.object(agreement, "_SECONDS_TO_HEAR", 1.0)
    with hears, engine_on(group, way, zero_stage=stage) as (engine, loss):

        def go() -> None:
            if how == "is killed":
                os._exit(1)
            if how == "closes":
                engine.close()
            try:
                raise KeyError("in the data loader")
            finally:
                if how == "closes on its way out":
                    engine.close()

        def steps() -> None:
            for number in range(4):
                if number == 2 and is_last(group):
                    go()
                engine.backward(loss())
                engine.step()

        if how == "raises" and is_last(group):
            steps()
        return heard(steps)


if __name__ == "__main__":
    store, rank, world = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world))
    assert dist.group.WORLD is not None
    print(leave(dist.group.WORLD, "memory", "raises", 3), flush=True)
    os._exit(0)
