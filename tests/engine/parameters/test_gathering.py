"""What is recorded of the order in which weights are gathered, and how long a gathered weight is kept."""

from typing import Any

import pytest
import torch
from torch import nn

from zbench.engine import Engine, build_engine
from zbench.engine.assembly import parameters
from zbench.engine.parameters.gathering import Gatherer
from zbench.spec.engine import EngineSpec

WIDTH, LAYERS = 64, 6


def engine_of_a_stack() -> Engine:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    keys = {"zero_stage": 3, "param_persistence_threshold": 0, "prefetch_bucket_size": 1}
    return build_engine(model, EngineSpec.model_validate(keys))


@torch.no_grad()
def test_what_is_recorded_of_a_region_that_does_not_end_stays_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Gatherer] = []
    make = lambda *a, **k: made.append(Gatherer(*a, **k)) or made[0]  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr(parameters, "Gatherer", make)
    engine = engine_of_a_stack()
    net: Any = engine.model
    counts = []
    with engine.gathered(net[0]):
        for _ in range(3):
            for _ in range(100):
                for layer in net[1:]:
                    layer(torch.ones(4, WIDTH))
            counts.append(sum(len(order.order) for order in made[0].orders.values()))
    engine.close()
    assert 0 < counts[0] < 500, "fewer than were called"
    assert counts == [counts[0]] * 3


def test_a_weight_is_released_when_backward_has_read_it() -> None:
    """Of a stack of layers, backward never holds more than the one that it is in."""
    engine = engine_of_a_stack()
    seen = list[int]()
    idle = engine.memory_by_category()["parameters"]

    def look(_: object = None) -> None:
        seen.append(engine.memory_by_category()["parameters"] - idle)

    for layer in engine.model.children():
        layer.register_forward_hook(lambda _, __, y: y.register_hook(look) and None)
    engine.backward(engine.model(torch.ones(4, WIDTH)).square().mean())
    engine.close()
    assert len(seen) == LAYERS
    assert max(seen) <= 4 * WIDTH * WIDTH
