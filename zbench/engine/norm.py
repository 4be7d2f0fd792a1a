"""What all ranks must know of a step before the update: the global norm, and which parameters received a
gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbench.engine.adam import NORM_CHUNK, AdamBackend
from zbench.engine.clip import sum_in_order
from zbench.engine.offload.flat import Spread
from zbench.engine.partition import Layout, Shard
from zbench.engine.protocols import Collectives


@dataclass(frozen=True, slots=True)
class Summary:
    """`square_sum` of the summed gradients in canonical order (None if not asked for), and `active`
    parameters.
    """

    square_sum: float | None
    active: list[bool]


class Summarizer:
    """Takes chunk sums of this rank's part of the gradient and gathers them, with the flags, in one
    collective. `square_sums`: from where, if somebody has computed them already.
    """

    def __init__(
        self,
        shard: Shard,
        gradients: Spread,
        backend: AdamBackend,
        collectives: Collectives,
        *,
        needs_norm: bool,
        square_sums: Callable[[], Tensor] | None = None,
    ) -> None:
        self._square_sums = square_sums or self._compute
        self.backend, self.collectives, self.needs_norm = backend, collectives, needs_norm
        parts = Shard(shard.layout, collectives.rank)
        self._gradients = gradients
        self._pieces = [parts.piece(block) for block in shard.layout.blocks] if shard.whole else None
        self._chunks = parts.length // NORM_CHUNK if needs_norm else 0
        self._order = torch.from_numpy(canonical_order(shard.layout)) if needs_norm else None

    def gather(self, contributed: Sequence[bool]) -> Summary:
        """Return the summary; the same on every rank."""
        flags = torch.tensor(contributed, dtype=torch.float64)
        gathered = self.collectives.all_gather_small(torch.cat([self._partials(), flags]))
        active = (gathered[:, self._chunks :] != 0).any(dim=0).tolist()
        if self._order is None:
            return Summary(None, active)
        sums = gathered[:, : self._chunks].reshape(-1)
        return Summary(sum_in_order(sums[self._order]), active)

    def _partials(self) -> Tensor:
        if not self.needs_norm:
            return torch.empty(0, dtype=torch.float64)
        return self._square_sums()

    def _compute(self) -> Tensor:
        out = torch.zeros(self._chunks, dtype=torch.float64)
        if self._pieces is None:
            views = [run for _, run in self._gradients.runs() if run.numel()]
        else:
            views = [self._gradients.run(p.start, p.length) for p in self._pieces]
        sizes = [v.numel() // NORM_CHUNK for v in views]
        chunk_square_sums(self.backend, views, out.split(sizes))  # type: ignore[no-untyped-call]
        return out


def chunk_square_sums(backend: AdamBackend, gradients: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """Write the chunk sums of `gradients`, wherever they are, to `out` in CPU memory."""
    there = [
        o if g.device == o.device else torch.zeros_like(o, device=g.device)
        for g, o in zip(gradients, out, strict=True)
    ]
    backend.chunk_square_sums(gradients, there)
    for mine, sums in zip(out, there, strict=True):
        if sums is not mine:
            mine.copy_(sums)


def canonical_order(layout: Layout) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return where, in [rank, local chunk] order, each chunk of registration order stands."""
    place = np.empty(layout.length // NORM_CHUNK, dtype=np.int64)
    local_chunks = place.size // layout.world_size
    for block in layout.blocks:
        begin, size = block.start // NORM_CHUNK, block.length // NORM_CHUNK // layout.world_size
        local = begin // layout.world_size + np.arange(size)
        ranks = np.arange(layout.world_size)[:, None] * local_chunks
        place[begin : begin + size * layout.world_size] = (ranks + local).reshape(-1)
    return np.concatenate([place[:0], *(place[first:stop] for first, stop in _chunk_ranges(layout))])


def _chunk_ranges(layout: Layout) -> Iterator[tuple[int, int]]:
    for span in layout.spans:
        yield span.start // NORM_CHUNK, span.padded_stop // NORM_CHUNK
