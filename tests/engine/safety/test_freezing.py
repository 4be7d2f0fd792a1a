"""Freezing and unfreezing between steps leaves the bits of plain PyTorch, moments and counts included."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.safety.plainly import STAGES, Plain, assert_same, batch, build, row_id, step
from zbench.engine import Engine, load, save
from zbench.errors import UsageError

AUTO = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_ratio": "auto"}
SPECULATIVE = {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
each_row = pytest.mark.parametrize("row", [*STAGES, AUTO, SPECULATIVE], ids=row_id)


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


def pair(row: dict[str, Any], trained: tuple[int, ...]) -> tuple[Engine, Plain]:
    return build(Layers(trained), row), Plain(Layers(trained))


PLANS = {
    "a trained layer is frozen while another is unfrozen": [(2, 3), (2, 3), (0, 3), (0, 3)],
    "gradual unfreezing": [(3,), (2, 3), (1, 2, 3), (0, 1, 2, 3)],
    "frozen, and trained again with its moments": [(2, 3), (2, 3), (0, 3), (0, 3), (2, 3), (0, 1, 2, 3)],
    "adapters, for long": [(1, 3)] * 6,
}


@each_row
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_what_is_trained_may_change_between_steps(row: dict[str, Any], plan: list[tuple[int, ...]]) -> None:
    engine, plain = pair(row, plan[0])
    for number, trained in enumerate(plan):
        freeze(engine.model, trained)
        freeze(plain.model, trained)
        step(engine, plain, number)
        assert_same(engine.full_parameters(), plain.values())
    engine.close()


@each_row
def test_a_loss_computed_before_a_layer_was_unfrozen_is_differentiated(row: dict[str, Any]) -> None:
    engine, plain = pair(row, (3,))
    step(engine, plain, 0)
    losses = [net(batch(1)).square().mean() for net in (engine.model, plain.model)]
    for net in (engine.model, plain.model):
        freeze(net, (2, 3))
    total = [
        loss + net(batch(2)).square().mean()
        for loss, net in zip(losses, (engine.model, plain.model), strict=True)
    ]
    engine.backward(total[0])
    total[1].backward()
    engine.step()
    plain.step()
    assert_same(engine.full_parameters(), plain.values())
    engine.close()


@each_row
def test_a_rebuild_that_is_refused_has_changed_nothing(row: dict[str, Any]) -> None:
    engine, plain = (Layers((2, 3)) for _ in range(2))
    for net in (engine, plain):
        net[0].weight.data = net[0].weight.data.double()
        net[0].bias.data = net[0].bias.data.double()
    trained, expected = build(engine, row), Plain(plain)
    for number in range(3):
        engine[0].weight.requires_grad_(True)
        with pytest.raises(UsageError, match=r"float64.*'0.weight'"):
            trained.backward(engine[3](torch.ones(2, 24)).sum())
        engine[0].weight.requires_grad_(False)
        for net in (engine, plain):
            x = net[1](net[0](batch(number).double()).float())
            loss = net[3](net[2](x)).square().mean()
            trained.backward(loss) if net is engine else loss.backward()
        trained.step()
        expected.step()
    values = {n: v.float() for n, v in expected.values().items()}
    assert_same(
        {n: v for n, v in trained.full_parameters().items() if n[0] != "0"},
        {n: v for n, v in values.items() if n[0] != "0"},
    )
    trained.close()


@each_row
def test_a_frozen_layer_takes_the_values_that_a_checkpoint_trained(
    row: dict[str, Any], tmp_path: Any
) -> None:
    engine, plain = pair(row, (0, 1, 2, 3))
    for number in range(2):
        step(engine, plain, number)
    for form in (False, True):
        save(engine, tmp_path / str(form), sharded=form)
    engine.close()
    for form in (False, True):
        other = build(Layers((3,)), row)
        load(other, tmp_path / str(form))
        assert_same(other.full_parameters(), plain.values())
        other.close()


@each_row
def test_a_trained_layer_takes_the_values_that_a_checkpoint_had_frozen(
    row: dict[str, Any], tmp_path: Any
) -> None:
    engine, plain = pair(row, (3,))
    step(engine, plain, 0)
    save(engine, tmp_path / "frozen")
    engine.close()
    other = build(Layers((0, 1, 2, 3)), row)
    load(other, tmp_path / "frozen")
    assert_same(other.full_parameters(), plain.values())
    freeze(plain.model, (0, 1, 2, 3))
    step(other, plain, 1)
    assert_same(other.full_parameters(), plain.values())
    other.close()


@each_row
def test_what_is_unfrozen_before_a_checkpoint_is_loaded_gets_its_moments(
    row: dict[str, Any], tmp_path: Any
) -> None:
    engine, plain = pair(row, (3,))
    step(engine, plain, 0)
    for net in (engine.model, plain.model):
        freeze(net, (2, 3))
    for number in (1, 2):
        step(engine, plain, number)
    save(engine, tmp_path / "saved")
    engine.close()
    other = build(Layers((3,)), row)
    freeze(other.model, (2, 3))
    load(other, tmp_path / "saved")
    step(other, plain, 3)
    assert_same(other.full_parameters(), plain.values())
    other.close()


@each_row
def test_a_gather_in_flight_does_not_reach_a_file(row: dict[str, Any], tmp_path: Any) -> None:
    """An evaluation that ends early leaves what was gathered ahead."""
    engine, plain = pair(row, (3,))
    for number in range(2):
        step(engine, plain, number)
    with torch.no_grad():
        engine.model(batch(0))  # records the order
        engine.model[0](batch(0))
        hidden = nn.Sequential(*list(engine.model.children())[:2])(batch(0))
        assert bool(hidden.isfinite().all())
    state = engine.state_dict()
    assert all(bool(v.isfinite().all()) for v in state.values())
    assert_same(
        {n: state[f"frozen.{n}"] for n in ("0.weight", "1.bias")},
        {n: plain.values()[n] for n in ("0.weight", "1.bias")},
    )
    engine.close()
