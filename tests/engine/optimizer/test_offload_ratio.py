"""`auto` is a pure function of three times, the same on every rank, and asks for them once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.optimizer.offload_costs import measure_offload_costs
from zbench.engine.optimizer.offload_ratio import SEEN, MeasuredRatio, OffloadRatio, largest_hidden
from zbench.engine.protocols import Tag
from zbench.engine.transport.single import SingleProcessCollectives


@pytest.mark.parametrize(
    ("copy", "update", "backward", "expected"),
    [
        (0.1, 0.9, 1.0, 1.0),  # all of it fits under backward
        (0.1, 1.0, 1.0, 1.0),
        (0.1, 2.0, 1.0, 0.5),  # the update is what takes long
        (4.0, 2.0, 1.0, 0.25),  # the copies are
        (0.0, 3.0, 1.0, 21 / 64),  # never more than fits
        (0.0, 100.0, 1.0, 0.0),  # not worth its trouble
        (0.0, 1.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 1.0),
    ],
)
def test_as_much_as_backward_hides(copy: float, update: float, backward: float, expected: float) -> None:
    assert largest_hidden(copy, update, backward) == expected


def test_a_longer_backward_never_hides_less() -> None:
    shares = [largest_hidden(0.3, 1.0, k / 100) for k in range(200)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


class Two(SingleProcessCollectives):
    """This rank and another, whose answer is given."""

    def __init__(self, other: list[float]) -> None:
        self.other = torch.tensor(other, dtype=torch.float64)

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        return torch.stack([values, self.other])


def decided(other: list[float], costs: tuple[float, float], seconds: list[float]) -> MeasuredRatio:
    times = iter([time for second in seconds for time in (0.0, second)])
    share = MeasuredRatio(lambda: costs, lambda: None, lambda: next(times))
    share.begin(0)
    assert not share.decide(Two(other), 0)
    for _ in seconds:
        with share.watching():
            pass
    assert share.decide(Two(other), SEEN)
    return share


def test_ranks_agree_on_the_slowest_copies_and_updates_and_the_fastest_backward() -> None:
    """Each rank sees the other's answer beside its own: what one chooses the other does."""
    here, there = (0.5, 2.0, [9.0, 1.0, 1.0]), (0.25, 4.0, [0.1, 2.0, 2.0])
    chosen = {
        decided([-b[0], -b[1], b[2][1]], (a[0], a[1]), a[2]).value for a, b in ((here, there), (there, here))
    }
    assert chosen == {0.25}


def test_it_measures_a_few_backwards_and_decides_once() -> None:
    asked: list[int] = []

    def costs() -> tuple[float, float]:
        asked.append(1)
        return 0.0, 1e9

    share = MeasuredRatio(costs, lambda: None)
    for step in range(SEEN):
        share.begin(7 + step)
        assert not share.decide(SingleProcessCollectives(), 7 + step)
        with share.watching():
            pass
    assert share.decide(SingleProcessCollectives(), 7 + SEEN)
    assert share.value == 0.0
    assert not share.decide(SingleProcessCollectives(), 8 + SEEN)
    assert asked == [1]


def test_a_backward_that_failed_is_not_counted() -> None:
    share = MeasuredRatio(lambda: (0.0, 1.0), lambda: None)
    with pytest.raises(ZeroDivisionError), share.watching():
        raise ZeroDivisionError
    share.begin(0)
    assert not share.decide(SingleProcessCollectives(), 0)
    assert not share.decide(SingleProcessCollectives(), SEEN), (
        "without a measurement everything stays where it is"
    )


def test_a_fixed_share_never_changes() -> None:
    share = OffloadRatio(0.25)
    with share.watching():
        pass
    assert not share.decide(SingleProcessCollectives(), 100)
    assert share.value == 0.25


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
def test_costs_grow_with_the_number_of_elements(moments: torch.dtype) -> None:
    arguments: Any = (
        DeviceMemory(torch.device("cpu"), "host_"),
        torch.device("cpu"),
        torch.bfloat16,
        moments,
        1,
    )
    assert all(cost > 0 for cost in measure_offload_costs(1000, *arguments))
