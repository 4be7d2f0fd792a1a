"""A state of the model that the program keeps while it trains on: it follows the model, or refuses."""

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES, Plain, same_steps
from tests.engine.safety.test_values import FAST, SPECULATIVE, both_sizes
from zbench.engine import Engine
from zbench.errors import UsageError

REFUSED = r"'first.weight' of model.state_dict\(\) is from before the last step.*state_dict\(\) anew"


@pytest.fixture(params=[*STAGES, SPECULATIVE, FAST], ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    return request.param


def saved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Tensor] = torch.load(file)
    return loaded


READS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "sum": lambda state: state["first.weight"].sum(),
    "copied to": lambda state: state["first.weight"].zero_(),
    "item": lambda state: state["first.weight"][0, 0].item(),
    "numpy": lambda state: state["first.weight"].numpy(),
    "clone": lambda state: state["first.weight"].clone(),
    "saved": saved,
    "deepcopy": deepcopy,
}


@both_sizes
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_state_that_is_kept_follows_the_model_or_refuses(
    engine: Engine, plain: Plain, read: Callable[[dict[str, Tensor]], object]
) -> None:
    same_steps(engine, plain, 0)
    state = engine.model.state_dict()
    assert_same(state, plain.values())
    assert_same(saved(state), plain.values())
    copy, expected = deepcopy(state), plain.values()
    same_steps(engine, plain, 1)
    if type(state["first.weight"]) is Tensor:
        assert_same(state, plain.values())
    else:
        with pytest.raises(UsageError, match=REFUSED):
            read(state)
        with pytest.raises(UsageError, match=REFUSED):
            engine.model.load_state_dict(state)
        assert state["first.weight"].shape == (24, 13)
    assert_same(copy, expected)
    same_steps(engine, plain, 2)
    assert_same(engine.model.state_dict(), plain.values())


@both_sizes
def test_a_state_that_is_written_counts_or_is_refused(engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    state = engine.model.state_dict()
    state["first.weight"].mul_(0.5)
    try:
        values = engine.full_parameters()
    except UsageError as error:
        assert "'first.weight' of model.state_dict() was changed" in str(error)  # noqa: PT017
        engine.model.load_state_dict(state)
        values = engine.full_parameters()
    with torch.no_grad():
        plain.model.get_parameter("first.weight").mul_(0.5)
    assert_same(values, plain.values())
    same_steps(engine, plain, 1, 2)


def test_an_edit_ends_what_was_handed_out_before(engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    state = engine.model.state_dict()
    with engine.gathered(engine.model.get_submodule("first"), write=True), torch.no_grad():
        engine.model.get_parameter("first.weight").mul_(0.5)
    with torch.no_grad():
        plain.model.get_parameter("first.weight").mul_(0.5)
    kept = {n: v for n, v in state.items() if type(v) is Tensor}
    assert_same(kept, {n: v for n, v in plain.values().items() if n in kept})
    assert kept.keys() >= state.keys() - {"first.weight", "first.bias"}
    same_steps(engine, plain, 1)
