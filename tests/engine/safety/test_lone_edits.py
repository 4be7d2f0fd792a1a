"""An edit of a weight on one rank alone: refused on every rank, and right when every rank makes it."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES, build
from tests.engine.safety.ranked import WIDTH, net
from tests.engine.steps.agreeing import heard
from zbench.engine import Engine
from zbench.testing.ranks import RankPool

NAME = "3.weight"
ROUNDED = {"dtype": "bfloat16", "gradient_accumulation_steps": 2}
REFUSED = f"UsageError: the step is refused: expected the same values of '{NAME}' on every rank"


@torch.no_grad()
def in_place(p: nn.Parameter, held: Tensor | None) -> None:
    p.mul_(0.5)


def by_data(p: nn.Parameter, held: Tensor | None) -> None:
    p.data[7:9].zero_()


def by_new_data(p: nn.Parameter, held: Tensor | None) -> None:
    p.data = p.detach() * 0.5


def by_what_was_held(p: nn.Parameter, held: Tensor | None) -> None:
    (p.data if held is None else held).mul_(0.5)


WAYS = {f.__name__: f for f in (in_place, by_data, by_new_data, by_what_was_held)}


def edit(engine: Engine, way: str, held: Tensor | None, *, makes: bool) -> None:
    """Have this rank edit a weight, if it `makes` the edit; at stage 3 all ranks gather the weight."""
    parameter = engine.model.get_parameter(NAME)
    sharded = held is None
    with engine.gathered(parameter) if sharded else nullcontext():
        if makes:
            WAYS[way](parameter, held)


def edited_alone(
    group: dist.ProcessGroup, row: dict[str, Any], way: str, editor: int, keys: dict[str, Any]
) -> tuple[str, str, dict[str, Tensor], dict[str, Tensor]]:
    """Return what a rank hears of a step after an edit of rank `editor` alone, and after the others have made
    it; the parameters then, and those of a run in which all ranks make it at once.
    """
    engine, other = build(net(), row, group, **keys), build(net(), row, group, **keys)
    x = torch.ones(2, WIDTH, dtype=engine.model.get_parameter(NAME).dtype)
    backwards = keys.get("gradient_accumulation_steps", 1)
    held = [None if row["zero_stage"] == 3 else e.model.get_parameter(NAME).data for e in (engine, other)]

    def backward(each: Engine) -> None:
        for _ in range(backwards):
            each.backward(each.model(x).square().mean())

    for each in (engine, other):
        backward(each)
        each.step()
        backward(each)
    alone = dist.get_rank(group) == editor
    edit(engine, way, held[0], makes=alone)
    first = heard(engine.step)
    edit(engine, way, held[0], makes=not alone)
    second = heard(engine.step)
    edit(other, way, held[1], makes=True)
    other.step()
    values = engine.full_parameters(), other.full_parameters()
    for each in (engine, other):
        each.close()
    return first, second, *values


@pytest.mark.parametrize("row", STAGES, ids=row_id)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("editor", "keys"),
    [(1, {}), (0, {"dtype": "bfloat16", "gradient_accumulation_steps": 2})],
    ids=["1", "0"],
)
def test_an_edit_on_one_rank_alone_is_refused_on_every_rank(
    ranks: RankPool, row: dict[str, Any], way: str, editor: int, keys: dict[str, Any]
) -> None:
    for first, second, values, expected in ranks.run(2, f"{__name__}:edited_alone", row, way, editor, keys):
        assert first.startswith(f"UsageError: the step is refused: expected the same values of '{NAME}'"), (
            first
        )
        assert f"rank {editor}: ['{NAME}']" in first
        assert f"rank {1 - editor}: none" in first
        assert "write=True" in first
        assert second == "nothing"
        assert_same(values, expected)


def swapped(group: dist.ProcessGroup, row: dict[str, Any]) -> tuple[str, str]:
    """Return what a rank hears of steps after rank 0 alone has read a weight, and replaced it for a while."""
    engine = build(net(), row, group)
    weight = engine.model.get_parameter(NAME)
    texts = []
    for acts in (read, replace_for_a_while):
        engine.backward(engine.model(torch.ones(2, WIDTH)).square().mean())
        if dist.get_rank(group) == 0:
            acts(weight)
        texts.append(heard(engine.step))
    engine.close()
    return texts[0], texts[1]


def read(weight: nn.Parameter) -> None:
    assert weight.data.norm() > 0


def replace_for_a_while(weight: nn.Parameter) -> None:
    before = weight.data.clone()
    weight.data.zero_()
    weight.data.copy_(before)


@pytest.mark.parametrize("row", STAGES[:3], ids=row_id)
def test_a_rank_may_read_a_weight_or_replace_it_for_a_while(ranks: RankPool, row: dict[str, Any]) -> None:
    assert ranks.run(2, f"{__name__}:swapped", row) == [("nothing", "nothing")] * 2
