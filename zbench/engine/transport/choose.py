"""Chooses the collectives for a process group."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from zbench.engine.protocols import Memory
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.cross_memory import CrossMemoryCollectives
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.hybrid import HybridCollectives, check_shard_group_size, shard_group
from zbench.engine.transport.peers import probe_peers
from zbench.engine.transport.process_group import ProcessGroupCollectives, gathering_group
from zbench.engine.transport.single import SingleProcessCollectives

Transport = SingleProcessCollectives | GroupCollectives | HostStagedCollectives | HybridCollectives
ChooseTransport = Callable[[dist.ProcessGroup | None, Memory, Memory, int | None], Transport]
Group = Callable[[dist.ProcessGroup, torch.device, int | None], GroupCollectives]


def choose_collectives(
    group: dist.ProcessGroup | None, local: Memory, host: Memory, shard_group_size: int | None = None
) -> Transport:
    """Return the collectives of `group` (None: the default group, or a world of one where there is none).

    shard_group_size: so many consecutive ranks share one set of shards; None: all ranks. UsageError where
    such groups do not fill the world.
    """
    device = local.device
    if group is None and not dist.is_initialized():
        check_shard_group_size(shard_group_size or 1, 1)
        return SingleProcessCollectives()
    group = group or dist.group.WORLD
    assert group is not None
    if group._get_backend(device).name() != "gloo":  # a group may have another backend for another device
        return grouped(group, device, shard_group_size, _device_collectives)
    staged = None if device.type == "cpu" else host
    make = partial(host_collectives, memory=staged)
    through = grouped(group, torch.device("cpu"), shard_group_size, make)
    if device.type == "cpu" or isinstance(through, SingleProcessCollectives):
        return through
    return HostStagedCollectives(through, host)


def grouped(
    group: dist.ProcessGroup, device: torch.device, shard_group_size: int | None, make: Group
) -> SingleProcessCollectives | GroupCollectives | HybridCollectives:
    """Return the collectives that `make` makes of `group`, in shard groups where their size is given."""
    world_size = dist.get_world_size(group)
    size = world_size if shard_group_size is None else shard_group_size
    check_shard_group_size(size, world_size)
    if world_size == 1:
        return SingleProcessCollectives()
    if size == world_size:
        return make(group, device, None)
    if size == 1:
        return HybridCollectives(make(group, device, size), SingleProcessCollectives())
    return HybridCollectives(make(group, device, size), make(shard_group(group, size, device), device, None))


def host_collectives(
    group: dist.ProcessGroup, cpu: torch.device, shards: int | None, *, memory: Memory | None = None
) -> GroupCollectives:
    """Return collectives of tensors in `memory` (None: anywhere on the CPU), over several ranks of a group
    that has gloo.
    """
    peers = probe_peers(group, memory)
    if peers is None:
        return GlooCollectives(group, cpu, shards)
    return CrossMemoryCollectives(group, cpu, peers, shards)


def _device_collectives(
    group: dist.ProcessGroup, device: torch.device, shards: int | None
) -> GroupCollectives:
    return ProcessGroupCollectives(group, device, gathering_group(group, device), shards)
