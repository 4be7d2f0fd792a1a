"""Whole parameters from the parts that the ranks hold."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import Segment, ShardLayout

_WHOLE = Tag("the state of some parameters")
_AT_ONCE = 1 << 22  # elements of several parameters that pass through the device together


class Consolidator:
    """Gathers what `ShardLayout`s share out. Every rank asks for the same parameters in the same order."""

    def __init__(self, shard: ShardLayout, collectives: Collectives) -> None:
        self.shard, self.collectives = shard, collectives
        layout = shard.layout
        self._segments: defaultdict[int, list[Segment]] = defaultdict(list)
        for s in shard.segments:
            if s.flat < layout.spans[s.parameter].stop:  # not padding alone
                self._segments[s.parameter].append(s)

    def whole(
        self, indices: Sequence[int], part: Callable[[Segment], Tensor], dtype: torch.dtype
    ) -> list[Tensor]:
        """Return the elements [numel] of some parameters in CPU memory; `part` returns this rank's of a
        segment.
        """
        found: list[Tensor] = []
        while len(found) < len(indices):
            batch, elements = list[int](), 0
            for i in indices[len(found) :]:
                elements += self.shard.layout.spans[i].numel
                if batch and elements > _AT_ONCE:
                    break
                batch.append(i)
            found += self._gathered(batch, part, dtype)
        return found

    def _gathered(
        self, batch: Sequence[int], part: Callable[[Segment], Tensor], dtype: torch.dtype
    ) -> list[Tensor]:
        spans = self.shard.layout.spans
        mine = [
            part(s)[: min(s.length, spans[i].stop - s.flat)].to("cpu", dtype)
            for i in batch
            for s in self._segments[i]
        ]
        own = torch.cat([torch.empty(0, dtype=dtype), *mine])
        if self.shard.keeps_all:
            return [values.clone() for values in own.split([spans[i].numel for i in batch])]  # type: ignore[no-untyped-call]
        layout = self.shard.layout
        pieces = [
            (i, shard, at, length)
            for i in batch
            for _, shard, _, at, length in layout.runs(spans[i], layout.blocks)
        ]
        taken = [0] * layout.shards
        for _, shard, _, length in pieces:
            taken[shard] += length
        sent = own.new_zeros(max(taken))
        sent[: own.numel()] = own
        gathered = self.collectives.gather_shards(sent, _WHOLE)
        found, taken = {i: own.new_empty(spans[i].numel) for i in batch}, [0] * len(taken)
        for i, shard, at, length in pieces:
            found[i][at : at + length] = gathered[shard, taken[shard] : taken[shard] + length]
            taken[shard] += length
        return [found[i] for i in batch]
