"""Collectives as ranks make them in the tests of transport, of every kind by its name."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from zbench.engine.memory.kinds import PinnedHostMemory
from zbench.engine.transport import cross_memory as cross_memory_module
from zbench.engine.transport.choose import host_collectives, in_shard_groups
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.peers import probe_peers
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.engine.transport.single import SingleProcessCollectives

CPU = torch.device("cpu")


def in_small_pieces(make: Callable[[dist.ProcessGroup], Any]) -> Callable[[dist.ProcessGroup], Any]:
    """Have memory of other ranks read in pieces of 4096 bytes until the collectives are closed."""

    @wraps(make)
    def made(group: dist.ProcessGroup) -> Any:
        comm = make(group)
        small = mock.patch.object(cross_memory_module, "_PIECE", 4096)
        small.start()
        close = comm.close

        def close_and_restore() -> None:
            small.stop()
            close()

        comm.close = close_and_restore
        return comm

    return made


def reading(group: dist.ProcessGroup) -> cross_memory_module.CrossMemoryCollectives:
    """Return collectives that read; AssertionError where ranks may not."""
    peers = probe_peers(group)
    assert peers is not None
    return cross_memory_module.CrossMemoryCollectives(group, CPU, peers)


cross_memory = in_small_pieces(reading)


def single(group: dist.ProcessGroup) -> Any:
    return SingleProcessCollectives()


def gloo(group: dist.ProcessGroup) -> Any:
    return GlooCollectives(group, CPU)


def process_group(group: dist.ProcessGroup) -> Any:
    return ProcessGroupCollectives(group, CPU)


def hybrid_process_group(group: dist.ProcessGroup) -> Any:
    return in_shard_groups(group, CPU, group.size() // 2, ProcessGroupCollectives)


@in_small_pieces
def hybrid_cross_memory(group: dist.ProcessGroup) -> Any:
    return in_shard_groups(group, CPU, group.size() // 2, host_collectives)


@in_small_pieces
def staged(group: dist.ProcessGroup) -> Any:
    return HostStagedCollectives(host_collectives(group, CPU), PinnedHostMemory(CPU))
