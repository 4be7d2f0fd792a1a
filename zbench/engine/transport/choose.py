"""Which collectives a process group gets."""

import torch
import torch.distributed as dist

from zbench.engine.transport.cross_memory import Neighbours
from zbench.engine.transport.gloo import Gloo
from zbench.engine.transport.probe import meet
from zbench.engine.transport.process_group import Native
from zbench.engine.transport.single import SingleProcess

Transport = SingleProcess | Gloo | Neighbours | Native


def choose_collectives(group: dist.ProcessGroup | None, device: torch.device) -> Transport:
    """Return the collectives of `group` (None: the default group, or a world of one where there is none)."""
    if group is None and not dist.is_initialized():
        return SingleProcess()
    group = group or dist.group.WORLD
    assert group is not None
    if dist.get_world_size(group) == 1:
        return SingleProcess()
    if dist.get_backend(group) != "gloo":
        return Native(group, device)
    found = meet(group) if device.type == "cpu" else None
    return Gloo(group, device) if found is None else Neighbours(group, device, found)
