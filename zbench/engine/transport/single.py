"""Collectives in a world of one rank."""

from torch import Tensor

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.buffers import place
from zbench.engine.transport.works import Done


class SingleProcessCollectives:
    """Every result is this rank's own values."""

    rank, world_size = 0, 1
    shard, shards = 0, 1

    def __init__(self) -> None:
        self.agreement = Agreement(0, 1)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        if place(send) != place(out):
            out.copy_(send)
        return Done()

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        return Done()

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        return values.unsqueeze(0)

    gather_shards = all_gather_small

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        return words

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        return Done()

    def barrier(self) -> None:
        return

    def bytes_by_category(self) -> dict[str, int]:
        return {}

    def release_scratch(self) -> None:
        return

    def close(self) -> None:
        return
