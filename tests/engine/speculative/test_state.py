"""State of speculative engines is ordinary engine state; what they hold in memory follows from a formula."""

from typing import Any

import pytest
import torch

from tests.engine.plain import assert_same
from tests.engine.speculative.running import bits, engine, layers, loss
from zbench.engine import Engine

ELEMENTS = 4 * (64 * 64 + 256)
"""Each bias is padded to a chunk of 256."""


def steps(built: Engine, first: int, last: int) -> None:
    for step in range(first, last):
        built.backward(loss(built.model, step, factor=20.0 if step % 2 else 1.0))
        built.step()


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
def test_memory_of_the_second_half(dtype: str, size: int) -> None:
    """Master weights and three moments again, the chunk sums, and (on the CPU) the parameters."""
    with engine(layers(), dtype=dtype, optimizer={"moments_dtype": dtype, "amsgrad": True}) as e:
        steps(e, 0, 3)
        held = e.memory_by_category()
    assert held["host_master"] == 4 * ELEMENTS
    assert held["host_moments"] == 3 * size * ELEMENTS
    assert held["host_speculative"] == held["host_master"] + held["host_moments"] + 8 * ELEMENTS // 256
    assert held["speculative"] == held["parameters"] == size * ELEMENTS


@pytest.mark.parametrize(
    ("schedule", "stage", "dtype", "ratio"),
    [
        ("speculative", 1, "float32", 0.25),
        ("speculative", 3, "bfloat16", 0.5),
        ("after_backward", 2, "bfloat16", 0.25),
        ("after_backward", 3, "float32", 0.0),
    ],
)
def test_memory_is_shared_out_by_the_ratio(schedule: str, stage: int, dtype: str, ratio: float) -> None:
    """Moments, gradients and masters; float32 parameters on the device are their own master weights."""
    host = round(ratio * ELEMENTS / 256) * 256
    options: dict[str, Any] = {"offload_schedule": schedule, "zero_stage": stage, "offload_ratio": ratio}
    with engine(layers(), dtype=dtype, gradient_clipping=0.0, **options) as e:
        steps(e, 0, 3)
        held = e.memory_by_category()
    assert held.get("host_moments", 0) == 8 * host
    assert held["moments"] == 8 * (ELEMENTS - host)
    assert held.get("host_gradients", 0) == held.get("host_master", 0) == 4 * host
    assert held["gradients"] == 4 * (ELEMENTS - host)
    assert held.get("master", 0) == (4 * (ELEMENTS - host) if dtype == "bfloat16" else 0)
    if schedule == "speculative":
        assert held.get("host_speculative", 0) == 12 * host


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # it wants to see optimizer.step
def test_a_scheduler_is_heard_by_the_next_update_ahead() -> None:
    """torch's own scheduler: what ran ahead in backward had the new rate, so nothing is done again."""
    states = []
    for schedule in ("speculative", "after_backward"):
        with engine(layers(), offload_schedule=schedule, param_groups={"*bias": {"lr": 0.1}}) as e:
            rates = torch.optim.lr_scheduler.ExponentialLR(e.optimizer, 0.5)
            for step in range(4):
                e.backward(loss(e.model, step))
                assert not e.step().rolled_back
                rates.step()
            states.append(bits(e))
    assert_same(*states)
