"""What the engine offers, and what it needs of its parts: interfaces without state."""

import zlib
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What one optimizer step did. `grad_norm` is the averaged, unscaled gradients' global L2 norm."""

    grad_norm: float | None
    clipped: bool = False
    skipped: bool = False
    rolled_back: bool = False
    loss_scale: float = 1.0


class TrainingEngine(Protocol):
    """The protocol that the built-in engine and every peer adapter implement.

    What follows `close` is for verification alone; an engine without it is judged by its parameters, and its
    rows say what was not checked.
    """

    def backward(self, loss: Tensor, last: bool | None = None) -> None: ...
    def step(self) -> StepInfo: ...
    def full_parameters(self) -> dict[str, Tensor]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...
    def memory_by_category(self) -> dict[str, int]: ...
    def close(self) -> None: ...

    def first_moments(self) -> dict[str, Tensor] | None:
        """Return name -> the whole exp_avg of every trained parameter that has one, on every rank.

        None, as here: not readable.
        """
        return None

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]] | None:
        """Return this rank's own runs of the optimizer's state, `NAME@START` -> `param` (the float32 master),
        `exp_avg`, `exp_avg_sq` and, with amsgrad, `max_exp_avg_sq`: flat, all of one length.

        They may be views; START is the first element of the run in the flat parameter. The runs of all ranks
        make up each trained parameter: several ranks may show the same run, but runs do not overlap. Frozen
        parameters may be shown, too, and must be if no rank has them whole. Moments may be missing before the
        first step. None, as here: not readable.
        """
        return None


class GradientSink(Protocol):
    """Takes the gradients of a backward, by the index of their parameters."""

    def accept(self, index: int, gradient: Tensor) -> None: ...
    def absent(self, indices: Collection[int]) -> None: ...


class HoldsBytes(Protocol):
    """Anything that keeps memory between calls."""

    def bytes_by_category(self) -> dict[str, int]: ...


class Work(Protocol):
    """A collective in flight. `wait` returns when its result may be read on the current stream."""

    def wait(self) -> object: ...

    def is_completed(self) -> bool:
        """Return whether `wait` would return at once; False where that is unknown."""


class Copy(Work, Protocol):
    """A copy between two memories. After `wait` the target may be read, after `release` the source may be
    written, each by whatever computes in that memory: the host, or the model's device in stream order.
    """

    def release(self) -> object: ...

    def behind(self) -> AbstractContextManager[object]:
        """Return a context in which the model's device reads the target of a copy to it; outside of it, what
        the device computes does not wait for the copy.
        """


class Memory(Protocol):
    """Allocates flat buffers, and copies between them and the model's device."""

    @property
    def device(self) -> torch.device:
        """The device of its buffers; computations on a device of this type write to them directly."""

    @property
    def prefix(self) -> str:
        """Prefix of its memory categories: empty for the model's device, `host_` for offloaded state."""

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a zeroed buffer [numel], aligned to 64 bytes."""

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a buffer [numel] that is not initialised, aligned to 64 bytes."""

    def occupied(self, nbytes: int) -> int:
        """Return the bytes that the allocator holds for a buffer of `nbytes`."""

    def copy_in(self, source: Tensor, target: Tensor) -> Copy:
        """Start copying `source`, on the model's device, into `target`, a buffer of this memory."""

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        """Start copying `source`, a buffer of this memory, into `target` on the model's device."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What a collective is for, in words that are the same on every rank; `code` is their checksum."""

    topic: str
    code: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", zlib.crc32(self.topic.encode()))


class Collectives(Protocol):
    """The only operations the engine asks of a process group.

    Shapes: W is the world size, N the number of shards. Rank r keeps shard r % N; N consecutive ranks are a
    shard group, and without `shard_group_size` N is W. `send` holds N equal parts, part s meant for the ranks
    that keep shard s; parts begin at 64-byte boundaries. All ranks call the same operations with the same
    tags in the same order; RanksDisagreeError where they do not.
    """

    rank: int
    world_size: int
    shard: int
    shards: int

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        """out[i] = sum over ranks r of rank r's send[shard * n + i], in out's dtype. Ranks are added in rank
        order, with shard groups first within each group; or as a backend adds them.
        """

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        """Fill `flat` [N * n] in place; this rank's part already stands at [shard * n, (shard + 1) * n)."""

    def gather_shards(self, values: Tensor, tag: Tag) -> Tensor:
        """Return [N, *values.shape]: the values of each shard, where all_gather_small has its own."""

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        """Return [W, *values.shape], bookkeeping such as checksums, where it was received: on the group's
        device, or in host memory.
        """

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        """Return the sum over all ranks of `words` [n] int64, where all_gather_small has its result.

        `words` may be written to.
        """

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        """Copy rank `source`'s tensor to all ranks, in place."""

    def barrier(self) -> None: ...
