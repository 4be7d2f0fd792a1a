"""What a gatherer records of the order in which groups are used, and what it gathers ahead of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from zbench.engine import build_engine
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.base import ParamInfo, write_segments
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.grouping import GroupPlan
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import GatherGroup, plan_layout
from zbench.engine.shard_layout import ShardedLayout
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.spec.engine import EngineSpec

CPU = torch.device("cpu")
SIZES = (300, 1024, 7)


def gatherer_of(window: int) -> tuple[Gatherer, list[ParamInfo]]:
    """Return a gatherer over one group for each parameter, in a world of one rank; none is whole."""
    groups = [GatherGroup((k,)) for k in reversed(range(len(SIZES)))]
    layout = plan_layout(SIZES, groups, shards=1, block_size=512)
    shard = ShardedLayout(layout, 0)
    comm = SingleProcessCollectives()
    infos = [ParamInfo(k, f"p{k}", nn.Parameter(torch.zeros(n)), 0) for k, n in enumerate(SIZES)]
    store = ShardedParameters(infos, shard, GroupPlan([torch.float32], groups), CPU, DeviceMemory(CPU), comm)
    write_segments(shard, infos, lambda t: torch.ones(SIZES[t.index]), store.owned)
    store.adopt()
    return Gatherer([store], window=window), infos


@contextmanager
def region(gatherer: Gatherer, caller: int) -> Iterator[None]:
    """An outermost call of module number `caller`."""
    gatherer.enter(caller)
    try:
        yield
    finally:
        gatherer.leave()


def run(gatherer: Gatherer, info: ParamInfo) -> None:
    """Run a module that owns this parameter."""
    groups = gatherer.groups_of([info.parameter])
    gatherer.begin_use(groups)
    gatherer.end_use(groups)


def recorded(gatherer: Gatherer) -> int:
    return sum(len(order.order) for order in gatherer.orders.values())


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_what_is_recorded_of_a_region_that_does_not_end_stays_bounded() -> None:
    gatherer, infos = gatherer_of(window=0)
    with region(gatherer, 0):
        counts = []
        for _ in range(3):
            for _ in range(100):
                for info in infos:
                    run(gatherer, info)
            counts.append(recorded(gatherer))
    assert 0 < counts[0] < 300
    assert counts == [counts[0]] * 3


def test_each_outermost_call_begins_its_order_again() -> None:
    """Of modules that are called as roots many times, and weights that are read outside of every call."""
    gatherer, infos = gatherer_of(window=0)
    for _ in range(50):
        for caller in (1, 2):
            with region(gatherer, caller):
                run(gatherer, infos[caller])
        gatherer.touch(infos[0].parameter)
        infos[0].parameter.sum()
    assert recorded(gatherer) == 2


def test_a_weight_is_released_when_backward_has_read_it() -> None:
    """Of a stack of layers, backward never holds more than the one that it is in."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
    keys = {"zero_stage": 3, "param_persistence_threshold": 0, "prefetch_bucket_size": 1}
    engine = build_engine(model, EngineSpec.model_validate(keys))
    seen = list[int]()
    idle = engine.memory_by_category()["parameters"]

    def look(_: object = None) -> None:
        seen.append(engine.memory_by_category()["parameters"] - idle)

    for layer in model:
        layer.register_forward_hook(lambda _, __, y: y.register_hook(look) and None)
    with torch.enable_grad():
        engine.backward(model(torch.ones(4, 64)).square().mean())
    engine.close()
    assert len(seen) == len(model)
    assert max(seen) <= 4 * 64 * 64
