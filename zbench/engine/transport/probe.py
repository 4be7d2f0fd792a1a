"""Ranks find out whether they are neighbours: whether each can read every other's memory."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from zbench.engine.transport.remote_memory import Sample, show_sample
from zbench.engine.transport.sockets import Channel, Door


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The process of every rank, and two channels between them."""

    pids: list[int]
    channels: list[Channel]


def meet(group: dist.ProcessGroup) -> Neighbourhood | None:
    """Return the neighbourhood if all ranks of `group` can read one another, else None; the same on all
    ranks.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    timeout = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    sample, kept = show_sample()
    door = Door(rank, world, timeout) if sys.platform == "linux" else None
    card = (sample, b"" if door is None else door.name)
    cards = [card] * world
    dist.all_gather_object(cards, card, group=group)
    verdicts = [False] * world
    dist.all_gather_object(verdicts, door is not None and _reaches(door, cards), group=group)
    del kept
    if door is None:
        return None
    found = None
    if all(verdicts):
        door.let_in(world - rank - 1)
        found = Neighbourhood([sample.pid for sample, _ in cards], door.channels)
    door.close()
    return found


def _reaches(door: Door, cards: Sequence[tuple[Sample, bytes]]) -> bool:
    with suppress(OSError):
        if all(sample.readable() for sample, _ in cards):
            door.knock([name for _, name in cards])
            return True
    return False
