"""A world of ranks in the threads of one process, so that one part of the engine can be tested by itself."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.works import Done

T = TypeVar("T")


@dataclass
class Meeting:
    """Where ranks exchange what they send."""

    world_size: int
    slots: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world_size, timeout=30)

    def exchange(self, rank: int, value: T) -> list[T]:
        """Return every rank's value."""
        self.slots[rank] = value
        self.barrier.wait()
        found = [self.slots[r] for r in range(self.world_size)]
        self.barrier.wait()
        return found


class ThreadCollectives:
    """Synchronous collectives between threads; reductions sum in rank order."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.world_size, self._meeting = rank, meeting.world_size, meeting
        self.shard, self.shards = rank, meeting.world_size
        self.reductions = 0

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        parts = self._meeting.exchange(self.rank, send.clone())
        total = torch.zeros_like(out)
        for part in parts:
            total += part.chunk(self.world_size)[self.rank]
        out.copy_(total)
        self.reductions += 1
        return Done()

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        mine = flat.chunk(self.world_size)[self.rank].clone()
        flat.copy_(torch.cat(self._meeting.exchange(self.rank, mine)))
        return Done()

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        return torch.stack(self._meeting.exchange(self.rank, values.clone()))

    gather_shards = all_gather_small

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        tensor.copy_(self._meeting.exchange(self.rank, tensor.clone())[source])
        return Done()

    def barrier(self) -> None:
        self._meeting.exchange(self.rank, None)

    def bytes_by_category(self) -> dict[str, int]:
        return {}

    def release_scratch(self) -> None:
        return

    def close(self) -> None:
        return


def on_ranks(world_size: int, body: Callable[[ThreadCollectives], T]) -> list[T]:
    """Return what `body` returned on each rank; raise what the first failing rank raised."""
    meeting = Meeting(world_size)

    def one(rank: int) -> T:
        torch.set_num_threads(1)
        try:
            return body(ThreadCollectives(meeting, rank))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        running = [pool.submit(one, rank) for rank in range(world_size)]
    errors = [work.exception() for work in running]
    real = [e for e in errors if e is not None and not isinstance(e, threading.BrokenBarrierError)]
    for error in (*real, *filter(None, errors)):
        raise error
    return [work.result() for work in running]
