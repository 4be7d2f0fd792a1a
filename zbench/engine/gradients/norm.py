"""What all ranks must know before the optimizer step: the global norm, and which parameters received a
gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.engine.adam import AdamBackend
from zbench.engine.adam.exact_sum import exact_zero, rounded
from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.buffers import to_device, to_host
from zbench.engine.transport.collective_checks import Terms

SUMMARY = Tag("the step's norm and flags")


@dataclass(frozen=True, slots=True)
class Summary:
    """square_sum: of the summed gradients, rounded once; None if no norm is needed. active: which parameters
    received a gradient on any rank.
    """

    square_sum: float | None
    active: list[bool]


@dataclass(frozen=True, slots=True)
class Summarizer:
    """Adds the exact square sums of every shard, flags and terms over all ranks, in one collective.

    square_sums: returns the exact sum of this rank's part of the gradient. always: whether each step asks for
    the norm. The message has 648 bytes for a model of any size, and beside them a counter for each parameter,
    of as many bits as the world size has.
    """

    collectives: Collectives
    agreement: Agreement
    square_sums: Callable[[], Tensor]
    always: bool

    def gather(self, contributed: Sequence[bool], terms: Terms, *, norm: bool = False) -> Summary:
        """Return the summary, the same on every rank; with its norm if `norm`, or always.

        UsageError or RanksDisagreeError, on every rank, where the step cannot be taken.
        """
        comm = self.collectives
        needs_norm = norm or self.always
        # zeros say that a step can be taken: a simulation reads nothing else
        missing = packed([not there for there in contributed], comm.world_size)
        own_terms = terms.words(self.agreement)
        flags = torch.tensor([*own_terms, *missing], dtype=torch.int64, device="cpu")
        if needs_norm:  # each shard once: the first shard group has them all
            sums = self.square_sums() if comm.rank < comm.shards else exact_zero()
            flags = torch.cat([to_device(flags, sums.device), sums])
        words: list[int] = to_host(comm.add_up(flags, SUMMARY), self.agreement.attend).tolist()
        terms.check(words[: len(own_terms)], comm.world_size, self.agreement)
        place = len(own_terms) + len(missing)
        missing_on = unpacked(words[len(own_terms) : place], len(contributed), comm.world_size)
        active = [count < comm.world_size for count in missing_on]
        return Summary(rounded(words[place:]) if needs_norm else None, active)


def packed(flags: Sequence[bool], world_size: int) -> list[int]:
    """Return flags in words, with room for each flag's sum over all ranks."""
    bits = world_size.bit_length()
    size = 63 // bits
    return [
        sum(flag << bits * place for place, flag in enumerate(flags[first : first + size]))
        for first in range(0, len(flags), size)
    ]


def unpacked(words: Sequence[int], count: int, world_size: int) -> list[int]:
    """Return the sums of `count` flags from the sums of their words."""
    bits = world_size.bit_length()
    mask = (1 << bits) - 1
    size = 63 // bits
    return [words[k // size] >> bits * (k % size) & mask for k in range(count)]


def part_square_sums(shard: ShardLayout, gradients: PartitionedBuffer, backend: AdamBackend) -> Tensor:
    """Return the exact square sum of this rank's part of the gradient: on the device of the gradients, or in
    CPU memory where some are on another.
    """
    views = [view for part in shard.parts for view in gradients.views(part)]
    devices = {view.device for view in views}
    sums = exact_zero(devices.pop() if len(devices) == 1 else "cpu")
    add_square_sums(backend, views, sums)
    return sums


def add_square_sums(backend: AdamBackend, gradients: Sequence[Tensor], sums: Tensor) -> None:
    """Add the square sums of `gradients`, on any devices, to an exact sum."""
    for device in {gradient.device for gradient in gradients}:
        there = [gradient for gradient in gradients if gradient.device == device]
        if device == sums.device:
            backend.add_square_sums(there, sums)
        else:
            far = exact_zero(device)
            backend.add_square_sums(there, far)
            sums += to_host(far)
