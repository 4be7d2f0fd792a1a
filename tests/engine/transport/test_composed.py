"""Collectives composed of others: device tensors through the host, groups of their own, who adds."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.engine.far_memory.streams import Stream, Values, modelled
from tests.engine.steps.agreeing import heard
from tests.engine.transport.cases import CPU
from zbench.engine.memory.kinds import DeviceMemory, PinnedHostMemory
from zbench.engine.protocols import Collectives
from zbench.engine.transport.choose import Reduction, choose_collectives, in_shard_groups
from zbench.engine.transport.hybrid import check_shard_group_size
from zbench.engine.transport.process_group import ProcessGroupCollectives, subgroup
from zbench.engine.transport.works import Done, OnStream
from zbench.errors import UsageError
from zbench.testing.collectives import TAG
from zbench.testing.ranks import RankPool


def in_a_new_pool(world: int, case: str) -> list[Any]:
    """Return what a case returns that makes groups: all ranks of a pool must have made as many."""
    ranks = RankPool(world)
    try:
        return ranks.run(world, f"{__name__}:{case}")
    finally:
        ranks.close()


def chosen_for_a_device(group: dist.ProcessGroup) -> str:
    """Return the kind of collectives that tensors of a GPU get over gloo."""
    comm = choose_collectives(group, DeviceMemory(torch.device("cuda")), PinnedHostMemory(CPU))
    comm.close()
    return type(comm).__name__


def test_gloo_takes_tensors_of_a_device_through_the_host(ranks: RankPool) -> None:
    assert ranks.run(2, f"{__name__}:chosen_for_a_device") == ["HostStagedCollectives"] * 2


def in_another_order(group: dist.ProcessGroup) -> bool:
    """Gather before the reduction on odd ranks and after it on the others; return whether both are right."""
    gathers = dist.new_group(dist.get_process_group_ranks(group))
    assert isinstance(gathers, dist.ProcessGroup)
    comm = ProcessGroupCollectives(group, CPU, gathers)
    rank, world = comm.rank, comm.world_size
    out = torch.empty(64)
    flat = torch.full((world * 64,), float(rank))
    send = torch.full((world * 64,), float(rank))
    calls = [lambda: comm.reduce_scatter(send, out, TAG), lambda: comm.all_gather(flat, TAG)]
    works = [call() for call in (calls[::-1] if rank % 2 else calls)]
    for work in works:
        work.wait()
    comm.close()
    gathered = torch.arange(world).repeat_interleave(64).float()
    return torch.equal(flat, gathered) and bool((out == sum(range(world))).all())


def test_gathers_in_their_own_group_need_no_order_among_reductions() -> None:
    assert in_a_new_pool(3, "in_another_order") == [True] * 3


def subgroups(group: dist.ProcessGroup) -> list[Any]:
    """Return the timeouts of shard groups of a group with one of two hours, and the device that each is bound
    to; then what is said where some ranks of a group belong to more groups than the others.
    """
    ranks = dist.get_process_group_ranks(group)
    slow = dist.new_group(ranks, timeout=timedelta(hours=2))
    assert isinstance(slow, dist.ProcessGroup)
    told: list[Any] = []
    for device in (CPU, torch.device("cuda", 0)):
        half = subgroup(slow, len(ranks) // 2, device)
        seconds = half._get_backend(device).options._timeout.total_seconds()
        told.append((seconds, half.bound_device_id))
    dist.new_group([0, 1])
    three = dist.new_group([0, 1, 2])
    return [*told, heard(lambda: subgroup(three, 1, CPU)) if dist.get_rank(group) < 3 else "not in it"]


def test_a_subgroup_keeps_timeout_and_card_and_needs_a_name() -> None:
    """torch's default is 30 minutes, and with NCCL 10. Without a name ranks would wait for ever."""
    *three, last = in_a_new_pool(4, "subgroups")
    assert last == [(7200.0, None), (7200.0, torch.device("cuda", 0)), "not in it"]
    for told in three:
        assert told[:2] == last[:2]
        assert "only where all belong to as many" in told[2]


@pytest.mark.parametrize("size", [0, 3])
def test_shard_groups_that_leave_ranks_over_are_refused(size: int) -> None:
    with pytest.raises(UsageError, match=rf"divides the 4 ranks into equal groups \(1, 2, 4\), got {size}"):
        check_shard_group_size(size, 4)


def by_the_backend(group: dist.ProcessGroup, size: int) -> Collectives:
    """Return collectives of shard groups of `size` ranks in which the backend adds."""
    return in_shard_groups(group, CPU, size, partial(ProcessGroupCollectives, in_rank_order=False))


def bytes_between_groups(group: dist.ProcessGroup, dtype: torch.dtype) -> list[tuple[str, int, torch.dtype]]:
    """Return what is called of the backend in one reduction of 2 groups: name, elements and dtype."""
    comm = by_the_backend(group, dist.get_world_size(group) // 2)
    calls: list[tuple[str, int, torch.dtype]] = []

    def seen(name: str, call: Any, first: torch.Tensor, *args: object, **keys: object) -> object:
        calls.append((name, first.numel(), first.dtype))
        return call(first, *args, **keys)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("reduce_scatter_tensor", "all_reduce"):
            patch.setattr(dist, name, partial(seen, name, getattr(dist, name)))
        comm.reduce_scatter(torch.ones(comm.shards * 64, dtype=dtype), torch.empty(64), TAG).wait()
    return calls


def test_only_shards_in_the_sent_dtype_leave_a_group(ranks: RankPool) -> None:
    for calls in ranks.run(4, f"{__name__}:bytes_between_groups", torch.bfloat16):
        assert calls == [("reduce_scatter_tensor", 64, torch.bfloat16), ("all_reduce", 64, torch.bfloat16)]


def refused(group: dist.ProcessGroup, reduction: Reduction) -> str:
    """Return what is said of a reduction over gloo."""
    here = DeviceMemory(CPU)
    return heard(lambda: choose_collectives(group, here, here, None, reduction).close())


def test_gloo_is_no_backend_that_adds(ranks: RankPool) -> None:
    for message in ranks.run(2, f"{__name__}:refused", "backend"):
        assert "reduction: backend: expected a process group of NCCL, got gloo" in message
        assert "set reduction: auto or rank_order" in message
    for reduction in ("auto", "rank_order"):
        assert ranks.run(2, f"{__name__}:refused", reduction) == ["nothing"] * 2


def test_results_are_read_behind_a_collective_and_computing_goes_on() -> None:
    with modelled() as (device, _):
        side, backend = Stream(), Stream()
        received, sums, read, other = (Values(device) for _ in range(4))

        class Received(Done):
            def wait(self) -> None:
                device.current_stream().wait_stream(backend)

        with device.stream(backend):
            received.write(3.0)
        work = OnStream(side, Received(), lambda: sums.copy_(received))  # type: ignore[arg-type]
        other.write(5.0)
        device.main.run(len(device.main.operations))
        assert other.value == 5.0
        assert not work.is_completed(), "what is computed would wait for the reduction"
        work.wait()
        read.copy_(sums)
        device.main.run(len(device.main.operations))
        assert read.value == 3.0
