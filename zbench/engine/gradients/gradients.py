"""Gradients between autograd and the optimizer.

Gradients are a *sink*: an autograd hook, or an operator inside a compiled graph, calls `accept(index,
gradient)` once per parameter and backward. The calls come between `begin` and `finish`, in an order that is
the same on all ranks. The gradient is copied before `accept` returns, or kept unchanged until it has been
sent.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto
from threading import get_ident

import torch
from torch import Tensor

from zbench.engine.gradients.bucket import Buckets
from zbench.engine.gradients.storage import SendingMemory
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.memory.kinds import GradientStream
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.policies import AccumulationBoundary
from zbench.errors import UsageError


class Accumulate(Enum):
    """What the backwards of a step are added up as."""

    REPLICATED = auto()
    """Each rank's own gradients of all parameters, which the last backward reduces. They have memory only in
    steps of several backwards.
    """
    SHARDED = auto()
    """The rank sums of what a rank keeps: each backward reduces."""


class Gradients:
    """Per backward: `begin`, `accept`..., `finish` (or `abandon`); per step: `settle`, then `clear`.

    `contributed` says which parameters received a gradient on this rank since the step began. param_infos:
    parameters that are frozen when a backward begins are not waited for.
    """

    def __init__(self, buckets: Buckets, param_infos: Sequence[ParamInfo], memory: SendingMemory) -> None:
        self.buckets, self.sums, self.memory, self._param_infos = buckets, buckets.sums, memory, param_infos
        self._at_boundary = memory.several is not None
        self._several = memory.several or memory.once
        self.contributed = [False] * len(buckets.portions)
        self._arrived: set[int] = set()
        self._declared: set[int] = set()
        self._open = self._waits = False
        self._thread = 0
        self._waiting: dict[int, Tensor] = {}
        self._stream = GradientStream(buckets.sums.device)

    def begin(self, boundary: AccumulationBoundary, loss: Tensor) -> None:
        """Start the backward of `loss` (scaled), from whose graph a subclass may read which gradients will
        come.
        """
        if self._at_boundary and self.buckets.consumed:
            raise UsageError(
                "expected step(), got a backward: this step's gradients have been reduced; call engine.step()"
                " again, or engine.zero_grad() to discard them"
            )
        if self._waiting:  # more backwards come: keep the gradients of the first as those of every other
            self.buckets.begin(self._several, reduces=False)
            self._write_waiting()
        self._arrived.clear()
        self._declared.clear()
        self._open = True
        self._thread = get_ident()
        self._stream.begin()
        reduces = not self._at_boundary or bool(boundary.last)
        self._waits = not reduces and boundary.first and boundary.last is None and self.memory.waits
        if reduces:
            self._begin_to_reduce(boundary)
            self.absent(self._foreseen())
        elif not self._waits:
            self.buckets.begin(self._several, reduces=False)

    def accept(self, index: int, gradient: Tensor) -> None:
        """Take parameter `index`'s gradient (its shape, any strides) of this backward."""
        with self._stream.behind(gradient):
            self._accept(index, gradient)

    def _accept(self, index: int, gradient: Tensor) -> None:
        """Take a gradient that is complete on the current stream."""
        self._arrive(index, gradient.device.type)
        if self._waits:
            self._waiting[index] = gradient
        else:
            self.buckets.write(index, gradient)

    def finish(self) -> None:
        """End a backward, and reduce what must be reduced in it."""
        self._open = False
        if not self._waits:
            self.buckets.finish()

    def settle(self) -> None:
        """Return when the step's sums are among the rank sums; reduce first what no backward did
        that was marked last.
        """
        if self._at_boundary and not self.buckets.consumed:
            self._begin_to_reduce(AccumulationBoundary(first=self._waits, last=True))
            self._write_waiting()
        self.sums.settle()

    def abandon(self) -> None:
        """Discard the step, during a backward or after it; collectives in flight are completed."""
        self._open = False
        self.buckets.abandon()
        self.sums.settle(discard=True)
        self.clear()

    def clear(self) -> None:
        """Release the step's gradient memory: the optimizer has read it, or the step was discarded."""
        self.contributed = [False] * len(self.contributed)
        self._waiting.clear()
        self.buckets.clear()
        self._several.clear()
        self.sums.release()

    def attach(self) -> None:
        """Register what must be registered outside the engine; `close` undoes it."""

    def close(self) -> None:
        """End background threads and undo what is registered outside the engine."""
        self.sums.close()
        self._several.close()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        waiting = {"gradients": sum(gradient.nbytes for gradient in self._waiting.values())}
        return bytes_of([waiting, self.memory.bytes_by_category()])

    def absent(self, indices: Collection[int]) -> None:
        """Expect no gradient of these parameters in this backward, on this rank."""
        new = set(indices) - self._arrived - self._declared
        self._declared |= new
        self.buckets.skip(new)

    def _begin_to_reduce(self, boundary: AccumulationBoundary) -> None:
        """Reduce what comes; at the boundary, with what earlier backwards of the step have left."""
        memory = self._several if self._at_boundary and not boundary.first else self.memory.once
        first = self._at_boundary or boundary.first
        self.buckets.begin(memory, reduces=True, first=first, last=bool(boundary.last))

    def _write_waiting(self) -> None:
        """Write the gradients that waited, if any did, and finish: nothing else comes in this backward."""
        waiting, self._waiting = self._waiting, {}
        for index, gradient in waiting.items():
            self.buckets.write(index, gradient)
        self.buckets.finish()

    def _foreseen(self) -> Collection[int]:
        """Return the parameters that will get no gradient in this backward: frozen since the engine was
        built.
        """
        with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
            return [t.index for t in self._param_infos if not t.parameter.requires_grad]

    def _arrive(self, index: int, device: str) -> None:
        # on the CPU autograd completes gradients in the thread that has called backward
        if not self._open or (device == "cpu" and get_ident() != self._thread):
            raise UsageError(
                "expected engine.backward(loss), got a backward outside of it; do not call loss.backward(),"
                " and freeze this model while another engine's loss goes through it"
            )
        if index in self._declared:
            raise UsageError(
                f"expected no gradient for parameter {index} in this backward any more, got one; do not"
                " unfreeze parameters in a backward, or use a leaf module's weights outside of its forward"
            )
        if index in self._arrived:
            raise UsageError(
                f"expected one gradient a backward for each parameter, got a second for parameter {index};"
                " reentrant activation checkpointing does this: use use_reentrant=False"
            )
        self._arrived.add(index)
        self.contributed[index] = True
