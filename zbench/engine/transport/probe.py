"""Probes whether each rank can read every other rank's memory."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from zbench.engine.transport.remote_memory import MemoryProbe, publish_probe
from zbench.engine.transport.sockets import PeerListener, PeerSockets


@dataclass(frozen=True, slots=True)
class PeerProcesses:
    """The process id of every rank, and two sets of sockets between them."""

    pids: list[int]
    channels: list[PeerSockets]


def probe_peers(group: dist.ProcessGroup) -> PeerProcesses | None:
    """Return the peers if all ranks of `group` can read one another's memory, else None; the same on all
    ranks.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    timeout = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    probe, kept = publish_probe()
    listener = PeerListener(rank, world, timeout) if sys.platform == "linux" else None
    contact = (probe, b"" if listener is None else listener.name)
    contacts = [contact] * world
    dist.all_gather_object(contacts, contact, group=group)
    verdicts = [False] * world
    dist.all_gather_object(verdicts, listener is not None and can_read_all(listener, contacts), group=group)
    del kept
    if listener is None:
        return None
    found = None
    if all(verdicts):
        listener.accept([probe.pid for probe, _ in contacts])
        found = PeerProcesses([probe.pid for probe, _ in contacts], listener.channels)
    listener.close()
    return found


def can_read_all(listener: PeerListener, contacts: Sequence[tuple[MemoryProbe, bytes]]) -> bool:
    """Connect to all ranks whose memory this process can read; say whether that is every one."""
    with suppress(OSError):
        if all(probe.readable() for probe, _ in contacts):
            listener.connect([name for _, name in contacts], [probe.pid for probe, _ in contacts])
            return True
    return False
