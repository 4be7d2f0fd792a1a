"""Where backward needs every processor, a step updates under it or after it: the faster, the same bits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.ranks import RankPool
from tests.engine.speculative.planned import Planned
from tests.engine.speculative.running import assert_same, bits, engine, layers, loss, schedule_of
from zbench.engine.speculative.sharing import SAMPLES, IfFaster
from zbench.engine.speculative.threads import choose, this_machine, threads_for

STEPS = 6


@pytest.mark.parametrize("rollback", ["double_buffer", "journal"])
@pytest.mark.parametrize("limit", [0.0, 1e6, 1e-3], ids=["no clipping", "not clipped", "clipped"])
@pytest.mark.parametrize("stage", [1, 3])
def test_a_step_under_backward_and_one_after_it_have_the_same_bits(
    stage: int, limit: float, rollback: str
) -> None:
    changes = {"zero_stage": stage, "gradient_clipping": limit, "rollback": rollback}
    expected = _trained([True] * STEPS, **changes)
    assert_same(_trained([False] * STEPS, **changes), expected)
    assert_same(_trained([True, False, False, True, False, True], **changes), expected)
    assert_same(_after_backward(stage, limit), expected)


def test_what_gets_no_gradient_stays_as_it_is_whichever_way_the_others_are_updated() -> None:
    """It keeps its values in both halves of the double buffer, though one was updated in place before."""
    plans = ([True] * STEPS, [False] * STEPS, [True, False, True, True, False, True], [False, True] * 3)
    states = [_trained(plan, resting=(2, 3)) for plan in plans]
    for state in states[1:]:
        assert_same(state, states[0])


@pytest.mark.parametrize("limit", [0.0, 1e-3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_may_choose_apart(ranks: RankPool, stage: int, limit: float) -> None:
    assert all(ranks.run(2, "tests.engine.speculative.apart:apart", stage, limit))


def test_nothing_is_submitted_in_a_step_that_updates_after_backward() -> None:
    model = layers()
    with engine(model) as e:
        scheduled = schedule_of(e)
        scheduled.worker.under_backward = Planned([False, True])
        e.backward(loss(model))
        assert not scheduled.ahead
        assert not e.step().rolled_back
        assert not scheduled.worker.timeline
        e.backward(loss(model, 1))
        assert scheduled.ahead


def test_both_ways_are_timed_in_turn_and_the_faster_one_stays() -> None:
    for under, after in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0)):  # of two that are as fast, the simpler one
        clock = Clock()
        chosen = IfFaster(clock)
        seen: list[bool] = []
        while not chosen.decided:
            seen.append(chosen.now)
            chosen.backward_begins()
            clock.seconds += 100.0  # of an earlier backward, and of what the user does between two
            chosen.backward_begins()
            first = len(seen) <= 2
            clock.seconds += 50.0 * first + (under if chosen.now else after)
            chosen.step_ends()
        assert seen == [True, False] * (SAMPLES + 1)
        assert chosen.now == (under < after)
        for _ in range(3):
            chosen.backward_begins()
            clock.seconds += 1000.0
            chosen.step_ends()
        assert chosen.now == (under < after)


def test_only_auto_without_a_processor_to_spare_is_timed() -> None:
    cpu, before = torch.device("cpu"), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert not threads_for("auto", cpu, alone=True).contended
        torch.set_num_threads(max(2, len(this_machine().allowed)))
        assert threads_for("auto", cpu, alone=True).contended
        assert not threads_for(1, cpu, alone=True).contended
        spared = len(this_machine().allowed) - 1
        assert not choose("auto", computing=spared, machine=this_machine(), near=0, alone=True).contended
        with engine(layers()) as e:
            assert isinstance(schedule_of(e).worker.under_backward, IfFaster)
            assert not e.schedule.is_settled
        with engine(layers(), optimizer_threads=1) as e:
            assert e.schedule.is_settled
            assert not isinstance(schedule_of(e).worker.under_backward, IfFaster)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(len(this_machine().allowed) < 2, reason="a thread is pinned where one can be spared")
@pytest.mark.parametrize("world_size", [1, 2])
def test_threads_are_pinned_only_where_no_other_rank_pins_to_the_same_processor(
    ranks: RankPool, world_size: int
) -> None:
    machine = this_machine()
    has_its_own = world_size == 1 or len(machine.allowed) < machine.online
    for pinned in ranks.run(world_size, "tests.engine.speculative.places:pinned_threads"):
        assert pinned == [1] * has_its_own


class Clock:
    """A clock that a test moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def _trained(plan: list[bool], resting: tuple[int, ...] = (), **changes: Any) -> dict[str, Tensor]:
    """Return the bits after the steps of a plan; one layer gets no gradient in the steps `resting`."""
    model = layers()
    with engine(model, **changes) as e:
        planned = Planned(plan)
        schedule_of(e).worker.under_backward = planned
        for step in range(len(plan)):
            e.backward(_loss_without(model, step) if step in resting else loss(model, step))
            e.step()
        assert planned.done == plan
        return bits(e)


def _after_backward(stage: int, limit: float) -> dict[str, Tensor]:
    model = layers()
    with engine(model, zero_stage=stage, gradient_clipping=limit, offload_schedule="after_backward") as e:
        for step in range(STEPS):
            e.backward(loss(model, step))
            e.step()
        return bits(e)


def _loss_without(model: Any, step: int) -> Tensor:
    """Return a loss that the model's first layer has no part in."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
    for layer in model.layers[1:]:
        x = torch.tanh(layer(x))
    return x.square().mean()
