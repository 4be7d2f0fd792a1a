"""Edits by tensors that share a weight's memory, and by collectives: they count, or are refused."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.covering import by_default
from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import Plain, batch, by_forward, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError
from zbench.testing.ranks import RankPool

Hold = Callable[[nn.Parameter], Callable[[], object]]
OFFLOAD = {"offload_optimizer": "cpu"}
SPECULATIVE = {**OFFLOAD, "offload_schedule": "speculative"}
WHOLE: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 1},
    {"zero_stage": 2, **OFFLOAD, "offload_ratio": 0.5},
    {"zero_stage": 1, **SPECULATIVE},
    {"zero_stage": 2, **SPECULATIVE, "rollback": "journal"},
]


def by_data(p: nn.Parameter) -> Callable[[], object]:
    held = p.data
    return lambda: held.mul_(0.5)


def by_numpy(p: nn.Parameter) -> Callable[[], object]:
    array = p.detach().numpy()
    return lambda: array.__imul__(0.5)


def by_unsafe_view(p: nn.Parameter) -> Callable[[], object]:
    held = torch.tensor([]).set_(p.detach().untyped_storage(), p.storage_offset(), p.shape)
    return lambda: held.mul_(0.5)


@pytest.mark.parametrize("row", WHOLE, ids=row_id)
@pytest.mark.parametrize("hold", [by_data, by_numpy, by_unsafe_view], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["first.weight", "norm.bias"])
def test_an_edit_by_what_was_held_before_counts(engine: Engine, plain: Plain, hold: Hold, name: str) -> None:
    edits = [hold(net.get_parameter(name)) for net in (engine.model, plain.model)]
    same_steps(engine, plain, 0, 1)
    for edit in edits:
        edit()
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 2, 3)
    for edit in edits:
        edit()
    same_steps(engine, plain, 4, 5)


@pytest.mark.parametrize("row", [{"zero_stage": 2}], ids=row_id)
@pytest.mark.parametrize("engine", [{"dtype": "bfloat16"}], indirect=True)
def test_an_edit_by_what_was_held_before_reaches_the_masters_of_bfloat16(engine: Engine) -> None:
    held = engine.model.first.weight.data
    engine.backward(by_forward(engine.model, batch(0)))
    engine.step()
    before = engine.full_parameters()
    held.mul_(0.5)
    after = engine.full_parameters()
    assert_same({"first.weight": after["first.weight"]}, {"first.weight": held.float()})
    assert torch.equal(after["last.weight"], before["last.weight"]), "in full precision"


@pytest.mark.parametrize("row", [{"zero_stage": 1, **SPECULATIVE}], ids=row_id)
def test_an_edit_of_memory_that_a_weight_has_left_is_refused(engine: Engine, plain: Plain) -> None:
    held = engine.model.first.weight.data
    same_steps(engine, plain, 0)
    held.mul_(0.5)
    engine.backward(by_forward(engine.model, batch(1)))
    with pytest.raises(UsageError, match=r"zero_grad\(\), and take p.data anew after each step.*journal"):
        engine.step()
    engine.zero_grad()
    same_steps(engine, plain, 1, 2)


@pytest.mark.parametrize("hold", [by_data, by_numpy, by_unsafe_view], ids=lambda f: f.__name__)
def test_an_edit_by_what_is_held_inside_gathered_counts(engine: Engine, plain: Plain, hold: Hold) -> None:
    same_steps(engine, plain, 0)
    with engine.gathered(engine.model.first):
        hold(engine.model.first.weight)()
    hold(plain.model.first.weight)()
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 1)


ROWS = [*WHOLE, {"zero_stage": 3}, {"zero_stage": 2, "dtype": "bfloat16"}]


USES = ["broadcast", "all_reduce", "all_gather", "of a part"]


@pytest.mark.parametrize(
    ("k", "use"), by_default(lambda k, use: use == USES[k % 4], product(range(len(ROWS)), USES))
)
def test_a_collective_that_writes_a_weight_counts(ranks: RankPool, k: int, use: str) -> None:
    first, second = ranks.run(2, "tests.engine.safety.ranked:written_by_a_collective", ROWS[k], use)
    for values, expected in (first, second):
        assert_same(values, expected)
    assert_same(first[0], second[0])
