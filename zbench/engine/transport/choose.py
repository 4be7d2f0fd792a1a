"""Chooses the collectives for a process group."""

import torch
import torch.distributed as dist

from zbench.engine.transport.cross_memory import CrossMemoryCollectives
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.probe import probe_peers
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.engine.transport.single import SingleProcessCollectives

Transport = SingleProcessCollectives | GlooCollectives | CrossMemoryCollectives | ProcessGroupCollectives


def choose_collectives(group: dist.ProcessGroup | None, device: torch.device) -> Transport:
    """Return the collectives of `group` (None: the default group, or a world of one where there is none)."""
    if group is None and not dist.is_initialized():
        return SingleProcessCollectives()
    group = group or dist.group.WORLD
    assert group is not None
    if dist.get_world_size(group) == 1:
        return SingleProcessCollectives()
    if group._get_backend(device).name() != "gloo":  # a group may have another backend for another device
        return ProcessGroupCollectives(group, device)
    found = probe_peers(group) if device.type == "cpu" else None
    return GlooCollectives(group, device) if found is None else CrossMemoryCollectives(group, device, found)
