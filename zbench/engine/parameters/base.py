"""What replicated and sharded parameters have in common: the optimizer's view of a model's parameters."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.parameters.released import memory_of, show
from zbench.engine.partition import Extent
from zbench.engine.shard_layout import Segment, ShardLayout
from zbench.engine.transport.buffers import in_place, share_storage
from zbench.errors import UsageError


@dataclass(eq=False, slots=True)
class ParamInfo:
    """One parameter, trained or frozen.

    index: its place in registration order among the trained ones (or among the frozen ones). name: what the
    model calls it now. group: its optimizer group; -1 for a frozen one.
    """

    index: int
    name: str
    parameter: torch.nn.Parameter
    group: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Values of a flat tensor, [rows, n]: the first of row k is its element `begin + k * distance`."""

    values: Tensor
    begin: int
    distance: int

    def copy_common(self, target: Tensor, at: int) -> None:
        """Copy what these rows have of a run of the flat tensor to `target`, which begins at element `at`."""
        rows, length = self.values.shape
        for row in range(rows):
            begin = self.begin + row * self.distance
            first, stop = max(begin, at), min(begin + length, at + target.numel())
            if first < stop:
                target[first - at : stop - at].copy_(self.values[row, first - begin : stop - begin])


def checksum_of(values: Tensor) -> int:
    """Return a checksum of the bits; of values on a device, waits for it."""
    flat = values.detach().reshape(-1).view(torch.uint8).cpu()
    return zlib.crc32(flat.numpy().data)


Values = Callable[[ParamInfo], Tensor | Iterable[Rows] | None]
"""What gives the values of a parameter: whole, or in turn."""


def write_segments(
    shard: ShardLayout,
    members: Sequence[ParamInfo],
    value: Values,
    place: Callable[[Segment], Tensor],
) -> None:
    """Write this rank's part of `value(member)` to `place(segment)`; None leaves it alone.

    `value` is called once a member, in the same order on every rank: it may be collective. It returns a whole
    tensor, or all of it in turn.
    """
    segments = {member.index: [] for member in members}  # type: dict[int, list[Segment]]
    for s in shard.segments:
        segments[s.parameter].append(s)
    for member in members:
        result = value(member)
        in_turn = [Rows(result.detach().reshape(1, -1), 0, 0)] if isinstance(result, Tensor) else result or ()
        start = shard.layout.spans[member.index].start
        targets = [(place(s)[: s.length], s.flat - start) for s in segments[member.index]]
        for rows in in_turn:
            for target, at in targets:
                rows.copy_common(target, at)


def put_back(info: ParamInfo, view: Tensor) -> bool:
    """Give a parameter its memory in the engine again where it has other memory, with the values that it has.

    `p.set_`, and the parametrizations of torch.nn.utils, which call it, give a parameter other memory. view:
    its memory here, of its shape. Returns whether values were taken over. UsageError for another shape, and
    for the same memory in another order (`p.t_()`): torch's optimizers disagree about the moments then.
    """
    with torch._C.DisableTorchFunctionSubclass():  # no operator runs, and no read of `data` is noted
        if in_place(info.parameter, view):
            return False
    values = memory_of(info.parameter)
    alike = values.shape == view.shape and values.dtype == view.dtype and values.device == view.device
    if not alike or share_storage(values, view):
        raise UsageError(
            f"expected {info.name!r} as it was when the engine was built, {_described(view)}, found"
            f" {_described(values)}; undo that and assign values of its shape (p.data = values), or change"
            " the model before build_engine"
        )
    view.copy_(values)
    show(info.parameter, view)
    return True


def _described(values: Tensor) -> str:
    return (
        f"{values.dtype} of shape {list(values.shape)} and strides {list(values.stride())} on {values.device}"
    )


class Parameters(ABC):
    """The model's parameters as the optimizer sees them: segments of this rank to write, and a way to publish
    them.

    buffers: their memory on this rank, one per dtype group, in `memory`: in the parameters' dtypes, or all in
    `stored`. on_edit: called with every segment of this rank, and its values, that somebody else than the
    engine has changed. has_masters: what an edit does not reach by itself has float32 masters apart from the
    parameters. edited: index of each parameter that was edited since the last step, as far as torch sees it,
    and the checksum of its values.
    """

    def __init__(
        self,
        param_infos: Sequence[ParamInfo],
        shard: ShardLayout,
        dtypes: Sequence[torch.dtype],
        memory: Memory,
        dtype_groups: Sequence[Extent],
        stored: torch.dtype | None = None,
    ) -> None:
        self.param_infos, self.shard, self.dtypes = param_infos, shard, dtypes
        self.memory, self.dtype_groups = memory, dtype_groups
        stored_dtypes = [stored or dtype for dtype in dtypes]
        self.buffers = [memory.zeros(s.length, d) for s, d in zip(dtype_groups, stored_dtypes, strict=True)]
        self._arriving: list[Copy] = []
        self.on_edit: Callable[[Segment, Tensor], None] = lambda segment, values: None
        self.has_masters = False
        self.edited: dict[int, int] = {}

    @abstractmethod
    def owned(self, segment: Segment) -> Tensor:
        """Return the stored values [segment.length] of what this rank owns."""

    @abstractmethod
    def adopt(self) -> None:
        """Make the model's parameters show what is stored here, and free their old values."""

    @abstractmethod
    def settle(self) -> None:
        """Publish the rest; return when the next forward may begin."""

    @abstractmethod
    def written(self, storage: int) -> None:
        """Note that a collective writes into the storage with this key, whosever it is."""

    def checksum(self, info: ParamInfo) -> int | None:
        """Return the checksum of a parameter's values on this rank; None if they are not here."""
        return self.edited.get(info.index)

    def absorb_hidden(self) -> None:
        """Report the parameters whose memory has changed behind torch's back; waits for the device."""

    def left_edited(self) -> bool:
        """Return whether memory that the parameters have left at the last step was changed since."""
        return False

    def receive(self, segment: Segment, values: Tensor, at: Memory) -> Copy:
        """Start copying new values of what this rank owns from another memory."""
        start = self.memory.copy_in if self.memory.prefix else at.copy_out
        self._arriving.append(start(values, self.owned(segment)))
        return self._arriving[-1]

    def mark_updated(self, which: Sequence[bool]) -> None:
        """Have torch know that these parameters have new values: a graph that saved old ones is refused."""
        increment_version([t.parameter for t in self.param_infos if which[t.index]])

    @abstractmethod
    def leave(self) -> None:
        """Release the model's parameters, because the engine is closed."""

    def publish(self, local_stop: int) -> None:
        """Start to send updated values to the other ranks: segments below `local_stop` (local order) are
        final.
        """

    def release(self) -> None:
        """Return when no copy reads the stored values, so that they may be written."""

    def _arrive(self) -> None:
        """Return when what was received may be read."""
        for copy in self._arriving:
            copy.wait()
        self._arriving.clear()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what is held now."""
        held = sum(self.memory.occupied(flat.nbytes) for flat in self.buffers)
        return {f"{self.memory.prefix}parameters": held}

    def _stored(self, dtype_group: int, start: int, length: int) -> Tensor:
        at = start - self.dtype_groups[dtype_group].start
        return self.buffers[dtype_group].narrow(0, at, length)
