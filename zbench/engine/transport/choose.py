"""Chooses the collectives for a process group."""

import torch
import torch.distributed as dist

from zbench.engine.protocols import Memory
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.cross_memory import CrossMemoryCollectives
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.probe import probe_peers
from zbench.engine.transport.process_group import ProcessGroupCollectives, gathering_group
from zbench.engine.transport.single import SingleProcessCollectives

HostTransport = GlooCollectives | CrossMemoryCollectives
Transport = SingleProcessCollectives | GroupCollectives | HostStagedCollectives


def choose_collectives(group: dist.ProcessGroup | None, local: Memory, host: Memory) -> Transport:
    """Return the collectives of `group` (None: the default group, or a world of one where there is none)."""
    device = local.device
    if group is None and not dist.is_initialized():
        return SingleProcessCollectives()
    group = group or dist.group.WORLD
    assert group is not None
    if dist.get_world_size(group) == 1:
        return SingleProcessCollectives()
    if group._get_backend(device).name() != "gloo":  # a group may have another backend for another device
        return ProcessGroupCollectives(group, device, gathering_group(group, device))
    through = host_collectives(group)
    return through if device.type == "cpu" else HostStagedCollectives(through, host)


def host_collectives(group: dist.ProcessGroup) -> HostTransport:
    """Return collectives of tensors in CPU memory, over several ranks of a group that has gloo."""
    device, found = torch.device("cpu"), probe_peers(group)
    return GlooCollectives(group, device) if found is None else CrossMemoryCollectives(group, device, found)
