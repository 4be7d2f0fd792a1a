"""State of speculative engines is ordinary engine state; what they hold in memory follows from a formula."""

from typing import Any

import pytest

from tests.engine.speculative.running import assert_same, bits, engine, layers, loss
from zbench.engine import Engine


def steps(built: Engine, first: int, last: int) -> None:
    for step in range(first, last):
        built.backward(loss(built.model, step, factor=20.0 if step % 2 else 1.0))
        built.step()


@pytest.mark.parametrize("saved", ["speculative", "after_backward"])
@pytest.mark.parametrize("resumed", ["speculative", "after_backward"])
@pytest.mark.parametrize("at", [3, 4])
def test_resumed_equals_continuous(saved: str, resumed: str, at: int) -> None:
    """Across schedules, and whichever half is current when the state is saved."""
    options: dict[str, Any] = {"gradient_clipping": 0.1, "param_groups": {"*bias": {"weight_decay": 0.0}}}
    with engine(layers(), **options) as continuous:
        steps(continuous, 0, 8)
        expected = bits(continuous)
    with engine(layers(), offload_schedule=saved, **options) as first:
        steps(first, 0, at)
        state = first.state_dict()
    with engine(layers(seed=1), offload_schedule=resumed, **options) as second:
        steps(second, 0, 1)
        second.load_state_dict(state)
        steps(second, at, 8)
        assert_same(bits(second), expected)


def test_loading_forgets_what_ran_ahead() -> None:
    with engine(layers()) as e:
        steps(e, 0, 2)
        state = e.state_dict()
        e.backward(loss(e.model, 2))
        e.load_state_dict(state)
        assert_same(e.state_dict(), state)
        steps(e, 2, 4)
        after = bits(e)
    with engine(layers()) as other:
        steps(other, 0, 4)
        assert_same(bits(other), after)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize(("moments", "moment_size"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_memory_of_the_second_half(
    dtype: str, size: int, moments: str, moment_size: int, amsgrad: bool
) -> None:
    """Master weights and two or three moments again, the chunk sums, and (on the CPU) the parameters."""
    elements = 4 * (64 * 64 + 256)  # each bias is padded to a chunk of 256
    optimizer = {"moments_dtype": moments, "amsgrad": amsgrad}
    with engine(layers(), dtype=dtype, optimizer=optimizer) as e:
        steps(e, 0, 3)
        held = e.memory_by_category()
    kinds = 3 if amsgrad else 2
    assert held["host_master"] == 4 * elements
    assert held["host_moments"] == kinds * moment_size * elements
    assert held["host_speculative"] == held["host_master"] + held["host_moments"] + 8 * elements // 256
    assert held["speculative"] == held["parameters"] == size * elements
