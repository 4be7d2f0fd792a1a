"""Chooses the collectives for a process group."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist

from zbench.engine.protocols import Memory
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.cross_memory import CrossMemoryCollectives
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.hybrid import HybridCollectives, check_shard_group_size
from zbench.engine.transport.peers import probe_peers
from zbench.engine.transport.process_group import ProcessGroupCollectives, gathering_group, subgroup
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.errors import UsageError

Transport = SingleProcessCollectives | GroupCollectives | HostStagedCollectives | HybridCollectives
Reduction = Literal["auto", "backend", "rank_order"]
ChooseTransport = Callable[[dist.ProcessGroup | None, Memory, Memory, int | None, Reduction], Transport]
Group = Callable[[dist.ProcessGroup, torch.device], GroupCollectives]


def choose_collectives(
    group: dist.ProcessGroup | None,
    local: Memory,
    host: Memory,
    shard_group_size: int | None = None,
    reduction: Reduction = "auto",
) -> Transport:
    """Return the collectives of `group` (None: the default group, or a world of one where there is none).

    shard_group_size: so many consecutive ranks share one set of shards; None: all ranks. reduction: who adds
    gradients; auto: the backend, but with gloo, where it is rank order. UsageError where shard groups do not
    fill the world, or gloo is to add.
    """
    device = local.device
    if group is None and not dist.is_initialized():
        check_shard_group_size(shard_group_size or 1, 1)
        return SingleProcessCollectives()
    group = group or dist.group.WORLD
    assert group is not None
    if group._get_backend(device).name() != "gloo":  # a group may have another backend for another device
        make_near = partial(_device_collectives, in_rank_order=reduction == "rank_order")
        return in_shard_groups(group, device, shard_group_size, make_near)
    if reduction == "backend" and dist.get_world_size(group) > 1:
        raise UsageError(
            "reduction: backend: expected a process group of NCCL, got gloo, over which zbench adds in rank"
            " order itself; set reduction: auto or rank_order, or train on GPUs with NCCL"
        )
    staged = None if device.type == "cpu" else host
    make = partial(host_collectives, memory=staged)
    through = in_shard_groups(group, torch.device("cpu"), shard_group_size, make)
    if device.type == "cpu" or isinstance(through, SingleProcessCollectives):
        return through
    return HostStagedCollectives(through, host)


def in_shard_groups(
    group: dist.ProcessGroup,
    device: torch.device,
    shard_group_size: int | None,
    make: Group,
) -> SingleProcessCollectives | GroupCollectives | HybridCollectives:
    """Return the collectives that `make` makes of `group`, in shard groups where their size is given."""
    world_size = dist.get_world_size(group)
    size = world_size if shard_group_size is None else shard_group_size
    check_shard_group_size(size, world_size)
    if world_size == 1:
        return SingleProcessCollectives()
    if size == world_size:
        return make(group, device)
    world = make(group, device)
    if size == 1:
        return HybridCollectives(world, SingleProcessCollectives(), make(group, device))
    within, across = (subgroup(group, size, device, across=across) for across in (False, True))
    return HybridCollectives(world, make(within, device), make(across, device))


def host_collectives(
    group: dist.ProcessGroup, cpu: torch.device, *, memory: Memory | None = None
) -> GroupCollectives:
    """Return collectives of tensors in `memory` (None: anywhere on the CPU), over several ranks of a group
    that has gloo.
    """
    peers = probe_peers(group, memory)
    if peers is None:
        return GlooCollectives(group, cpu)
    return CrossMemoryCollectives(group, cpu, peers)


def _device_collectives(
    group: dist.ProcessGroup, device: torch.device, *, in_rank_order: bool
) -> GroupCollectives:
    gathers = gathering_group(group, device)
    return ProcessGroupCollectives(group, device, gathers, in_rank_order=in_rank_order)
