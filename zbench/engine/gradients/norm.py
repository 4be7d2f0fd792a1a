"""What all ranks must know before the optimizer step: the global norm, and which parameters received a
gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbench.engine.adam import NORM_CHUNK, AdamBackend
from zbench.engine.adam.contract import sum_by_halves
from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.partition import Layout
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.buffers import to_device, to_host
from zbench.engine.transport.collective_checks import Terms

_SUMMARY = Tag("the step's norm and flags")


@dataclass(frozen=True, slots=True)
class Summary:
    """square_sum: of the summed gradients, in canonical order; None if no norm is needed. active: which
    parameters received a gradient on any rank.
    """

    square_sum: float | None
    active: list[bool]


class Summarizer:
    """Gathers the chunk sums of every rank's part of the gradient, flags and terms, in one collective, or two
    with `shard_group_size`.

    square_sums: this rank's, [layout.length / shards / NORM_CHUNK] float64. always: whether each step
    asks for the norm.
    """

    def __init__(
        self,
        layout: Layout,
        collectives: Collectives,
        agreement: Agreement,
        square_sums: Callable[[], Tensor],
        *,
        always: bool,
    ) -> None:
        self.collectives, self.agreement = collectives, agreement
        self._layout, self._square_sums, self._always = layout, square_sums, always
        self._order: Tensor | None = None

    def gather(self, contributed: Sequence[bool], terms: Terms, *, norm: bool = False) -> Summary:
        """Return the summary, the same on every rank; with its norm if `norm`, or always.

        UsageError or RanksDisagreeError, on every rank, where the step cannot be taken.
        """
        numbers = terms.numbers(self.agreement)
        # zeros say that a step can be taken: a simulation reads nothing else
        flags = torch.tensor([*(not there for there in contributed), *numbers], dtype=torch.float64)
        wanted = norm or self._always
        sums = self._square_sums() if wanted else flags.new_empty(0)
        sums, flags = self._gathered(sums, flags)
        total = self._total(sums) if wanted else sums.sum()
        known = to_host(torch.cat([total.view(1), flags.reshape(-1)]))
        flags, numbers_of = known[1:].view(flags.shape).tensor_split([len(contributed)], dim=1)
        terms.check(numbers_of, self.agreement)
        active = [not missing for missing in (flags != 0).all(dim=0).tolist()]
        return Summary(float(known[0]) if wanted else None, active)

    def _total(self, sums: Tensor) -> Tensor:
        """Return the sum [] of the chunk sums of all shards [N, chunks], where they are."""
        if self._order is None:
            self._order = torch.from_numpy(canonical_order(self._layout)).to(sums.device)
        return sum_by_halves(sums.reshape(-1).index_select(0, self._order))

    def _gathered(self, sums: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of every shard [N, chunks] and the flags of every rank [W, n]: in one message where
        each rank keeps a shard of its own.
        """
        comm = self.collectives
        if comm.shards < comm.world_size:
            flags = comm.all_gather_small(flags, _SUMMARY)
            return comm.gather_shards(sums, _SUMMARY), flags
        gathered = comm.all_gather_small(torch.cat([sums, to_device(flags, sums.device)]), _SUMMARY)
        return gathered[:, : sums.numel()], gathered[:, sums.numel() :]


def part_square_sums(shard: ShardLayout, gradients: PartitionedBuffer, backend: AdamBackend) -> Tensor:
    """Return the chunk sums, float64, of this rank's part of the gradient, in local order: on the device of
    the gradients, or in CPU memory where some are on another.
    """
    views = [view for part in shard.parts for view in gradients.views(part)]
    sizes, devices = [view.numel() // NORM_CHUNK for view in views], {view.device for view in views}
    out = torch.zeros(sum(sizes), dtype=torch.float64, device=devices.pop() if len(devices) == 1 else "cpu")
    chunk_square_sums(backend, views, out.split(sizes))  # type: ignore[no-untyped-call]
    return out


def chunk_square_sums(backend: AdamBackend, gradients: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """Write the chunk sums of `gradients` to `out`, each on its gradient's device or in CPU memory: these by
    one copy.
    """
    far = [k for k, gradient in enumerate(gradients) if gradient.device != out[k].device]
    sizes = [out[k].numel() for k in far]
    sums = torch.empty(sum(sizes), dtype=torch.float64, device=gradients[far[0]].device if far else "cpu")
    places = dict(zip(far, sums.split(sizes), strict=True))  # type: ignore[no-untyped-call]
    backend.chunk_square_sums(gradients, [places.get(k, o) for k, o in enumerate(out)])
    for k, there in zip(far, to_host(sums).split(sizes), strict=True):  # type: ignore[no-untyped-call]
        out[k].copy_(there)


def canonical_order(layout: Layout) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the position in [shard, local chunk] order of each chunk in registration order."""
    place = np.empty(layout.length // NORM_CHUNK, dtype=np.int64)
    local_chunks = place.size // layout.shards
    for block in layout.blocks:
        begin, size = block.start // NORM_CHUNK, block.length // NORM_CHUNK // layout.shards
        local = begin // layout.shards + np.arange(size)
        shards = np.arange(layout.shards)[:, None] * local_chunks
        place[begin : begin + size * layout.shards] = (shards + local).reshape(-1)
    spans = [place[s.start // NORM_CHUNK : s.padded_stop // NORM_CHUNK] for s in layout.spans]
    return np.concatenate([place[:0], *spans])
