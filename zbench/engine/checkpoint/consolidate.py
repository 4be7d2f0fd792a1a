"""One parameter at a time, whole, from the parts that the ranks hold."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import Segment, ShardLayout

_WHOLE = Tag("the state of one parameter")


class Consolidator:
    """Gathers what `ShardLayout`s share out. Every rank asks for the same parameters in the same order."""

    def __init__(self, shard: ShardLayout, collectives: Collectives) -> None:
        self.shard, self.collectives = shard, collectives
        self._segments: defaultdict[int, list[Segment]] = defaultdict(list)
        for s in shard.segments:
            self._segments[s.parameter].append(s)

    def whole(self, index: int, part: Callable[[Segment], Tensor], dtype: torch.dtype) -> Tensor:
        """Return one parameter's elements [numel] in CPU memory; `part` returns this rank's of a segment."""
        span = self.shard.layout.spans[index]
        mine = [
            part(s)[: min(s.length, span.stop - s.flat)].to("cpu", dtype)
            for s in self._segments[index]
            if s.flat < span.stop
        ]
        own = torch.cat([torch.empty(0, dtype=dtype), *mine])
        if self.shard.keeps_all:
            return own
        layout = self.shard.layout
        pieces = [(rank, at, n) for _, rank, _, at, n in layout.runs(span, layout.blocks)]
        lengths = [0] * self.collectives.world_size
        for rank, _, length in pieces:
            lengths[rank] += length
        sent = own.new_zeros(max(lengths))
        sent[: own.numel()] = own
        gathered = self.collectives.all_gather_small(sent, _WHOLE)
        found, taken = own.new_empty(span.numel), [0] * len(lengths)
        for rank, at, length in pieces:
            found[at : at + length] = gathered[rank, taken[rank] : taken[rank] + length]
            taken[rank] += length
        return found
