"""What is trained may be frozen and thawed between steps: plain PyTorch's bits, moments and counts."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES, Plain, batch, by_forward, same_steps, step
from zbench.engine import Engine, load, save
from zbench.errors import UsageError

SPECULATIVE = {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
Twins = Callable[..., tuple[Engine, Plain]]


@pytest.fixture(params=[*STAGES, SPECULATIVE], ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    return request.param


class Layers(nn.Sequential):
    """Four layers; the frozen ones' weights are needed by backward."""

    def __init__(self, trained: tuple[int, ...]) -> None:
        torch.manual_seed(5)
        sizes = (13, 24, 24, 24, 7)
        super().__init__(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
        freeze(self, trained)


def freeze(net: nn.Module, trained: tuple[int, ...]) -> None:
    """Have exactly these layers trained."""
    for k, layer in enumerate(net.children()):
        layer.requires_grad_(k in trained)


PLANS = {
    "two halves in turn": [(0, 1, 2, 3), (0, 1), (2, 3), (0, 1), (2, 3), (0, 1, 2, 3)],
    "frozen, and trained again with its moments": [(0, 2, 3), (0, 3), (2, 3), (2, 3), (0, 2, 3)],
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_what_is_trained_may_change_between_steps(twins: Twins, plan: list[tuple[int, ...]]) -> None:
    engine, plain = twins(lambda: Layers(plan[0]))
    for number, trained in enumerate(plan):
        freeze(engine.model, trained)
        freeze(plain.model, trained)
        same_steps(engine, plain, number)


def test_a_loss_computed_before_a_layer_was_thawed_is_differentiated(twins: Twins) -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        freeze(net, (3,))
        before = by_forward(net, x)
        freeze(net, (2, 3))
        return before + by_forward(net, batch(2))

    engine, plain = twins(lambda: Layers((2, 3)))
    for net in (engine.model, plain.model):
        freeze(net, (3,))
    step(engine, plain, 0)
    same_steps(engine, plain, 1, loss=loss)


@pytest.mark.parametrize("row", [{"zero_stage": 3}], ids=row_id)
def test_a_frozen_weight_that_the_loss_read_is_released(twins: Twins) -> None:
    """Stage 3 would hold all frozen weights, where parents read the weights of their children."""

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return by_forward(net, x) + 0.1 * net.get_parameter("0.weight").square().sum()

    engine, plain = twins(lambda: Layers((2, 3)))
    parameters = engine.memory_by_category()["parameters"]
    same_steps(engine, plain, 0, 1, loss=loss)
    assert engine.memory_by_category()["parameters"] == parameters


@pytest.mark.parametrize("begun", [False, True], ids=["between steps", "in a step"])
def test_a_layer_that_was_frozen_at_the_build_is_refused_when_it_is_unfrozen(
    twins: Twins, begun: bool
) -> None:
    backwards = 1 + begun
    engine, plain = twins(lambda: Layers((2, 3)), gradient_accumulation_steps=backwards)

    def train(number: int) -> None:
        for micro in range(backwards):
            (plain.model(batch(number + micro)).square().mean() / backwards).backward()
        for micro in range(backwards):
            if micro == backwards - 1:
                engine.model[1].weight.requires_grad_(True)
                with pytest.raises(UsageError, match=r"'1.weight' was frozen when.*save a checkpoint"):
                    engine.backward(engine.model(batch(number)).square().mean())
                engine.model[1].weight.requires_grad_(False)
            engine.backward(engine.model(batch(number + micro)).square().mean())
        engine.step()
        plain.step()

    for number in range(2):
        train(number)
    assert_same(engine.full_parameters(), plain.values())


@pytest.mark.parametrize(("saved", "loaded"), [((0, 1, 2, 3), (3,)), ((3,), (0, 1, 2, 3))], ids=str)
def test_a_checkpoint_that_trains_other_layers_gives_its_values(
    twins: Twins, saved: tuple[int, ...], loaded: tuple[int, ...], tmp_path: Any
) -> None:
    engine, plain = twins(lambda: Layers(saved))
    same_steps(engine, plain, 0, 1)
    save(engine, tmp_path / "saved")
    engine.close()
    freeze(plain.model, loaded)
    other, _ = twins(lambda: Layers(loaded))
    load(other, tmp_path / "saved")
    assert_same(other.full_parameters(), plain.values())
    same_steps(other, plain, 2)


def test_a_gather_in_flight_does_not_reach_a_file(twins: Twins) -> None:
    """An evaluation that ends early leaves what was gathered ahead."""
    engine, plain = twins(lambda: Layers((3,)))
    same_steps(engine, plain, 0, 1)
    with torch.no_grad():
        engine.model(batch(0))  # records the order
        engine.model[0](batch(0))
        hidden = nn.Sequential(*list(engine.model.children())[:2])(batch(0))
        assert bool(hidden.isfinite().all())
    state = engine.state_dict()
    assert all(bool(v.isfinite().all()) for v in state.values())
    for name in ("0.weight", "1.bias"):
        assert torch.equal(state[f"frozen.{name}"], plain.values()[name])
