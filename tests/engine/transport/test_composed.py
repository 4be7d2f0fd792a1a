"""Collectives composed of others: sums in rank order over any backend, device tensors through the host."""

from typing import Any

import pytest
import torch

from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.transport import choose
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.testing.ranks import RankPool


@pytest.mark.parametrize("world", [2])
def test_gloo_takes_tensors_of_a_device_through_the_host(ranks: RankPool, world: int) -> None:
    assert (
        ranks.run(world, "tests.engine.transport.composed:chosen_for_a_device")
        == [HostStagedCollectives.__name__] * world
    )


def test_a_world_of_one_needs_no_backend() -> None:
    assert choose.choose_collectives(None, *[DeviceMemory(torch.device("meta"))] * 2).world_size == 1


def test_gathers_of_a_group_of_their_own_need_no_order_among_reductions() -> None:
    assert in_a_new_pool(3, "in_another_order") == [True] * 3


def test_ranks_that_could_not_agree_on_a_groups_name_are_refused() -> None:
    """They would wait for one another for ever."""
    *three, last = in_a_new_pool(4, "subgroup_where_ranks_belong_to_unlike_many")
    assert last == "not in it"
    assert all("only where all belong to as many" in text for text in three), three


def test_a_subgroup_keeps_the_timeout_and_is_bound_to_its_card() -> None:
    """torch's default is 30 minutes, and with NCCL 10."""
    expected = [(7200.0, None), (7200.0, torch.device("cuda", 0))]
    assert in_a_new_pool(2, "timeouts_of_subgroups") == [expected] * 2


def in_a_new_pool(world: int, case: str) -> list[Any]:
    """Return what a case returns that makes groups: all ranks of a pool must have made as many."""
    ranks = RankPool(world)
    try:
        return ranks.run(world, f"tests.engine.transport.composed:{case}")
    finally:
        ranks.close()
