"""Gradients between autograd and the optimizer.

`ReplicatedGradients` adds up the gradients of earlier backwards on each rank, in memory for all of them that
is allocated only if there are any, and reduces at the accumulation boundary. `ShardedGradients` reduces in
every backward and adds up this rank's shard of the sums.

Both are a *gradient sink*: an autograd hook, or an operator inside a compiled graph, calls `accept(index,
gradient)` once per parameter and backward, between `begin` and `finish`, in an order that is the same on all
ranks. The gradient is copied before `accept` returns, or kept unchanged until it has been sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from zbench.engine.gradients.accumulators import Accumulator
from zbench.engine.gradients.bucket_buffers import BucketBuffers, runs
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.memory.kinds import GradientStream
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.policies import AccumulationBoundary
from zbench.errors import UsageError


class Gradients(ABC):
    """Per backward: `begin`, `accept`..., `finish` (or `abandon`); per step: `settle`, then `clear`.

    `contributed` says which parameters received a gradient on this rank since the step began. param_infos:
    parameters that are frozen when a backward begins are not waited for.
    """

    def __init__(self, reducer: BucketReducer, param_infos: Sequence[ParamInfo]) -> None:
        self.reducer, self.portions, self._param_infos = reducer, reducer.portions, param_infos
        self.contributed = [False] * len(self.portions)
        self._arrived = [False] * len(self.portions)
        self._declared: set[int] = set()
        self._open = False
        self._stream = GradientStream(reducer.reduced_gradients.device)

    @abstractmethod
    def begin(self, boundary: AccumulationBoundary, loss: Tensor) -> None:
        """Start the backward of `loss` (scaled), from whose graph a subclass may read which gradients will
        come.
        """

    def accept(self, index: int, gradient: Tensor) -> None:
        """Take parameter `index`'s gradient (its shape, any strides) of this backward."""
        with self._stream.behind(gradient):
            self._accept(index, gradient)

    @abstractmethod
    def _accept(self, index: int, gradient: Tensor) -> None:
        """Take a gradient that is complete on the current stream."""

    @abstractmethod
    def finish(self) -> None:
        """End a backward, and reduce what must be reduced in it."""

    @abstractmethod
    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""

    def settle(self) -> None:
        """Return when the step's sums are in the reduced-gradient buffer; reduce first what no backward did
        that was marked last.
        """
        self.reducer.reduced_gradients.settle()

    def abandon(self) -> None:
        """Discard the step, during a backward or after it; collectives in flight are completed."""
        self._open = False
        self.reducer.abandon()
        self.reducer.reduced_gradients.settle(discard=True)
        self.clear()

    def clear(self) -> None:
        """Release the step's gradient memory: the optimizer has read it, or the step was discarded."""
        self.contributed = [False] * len(self.portions)
        self.reducer.reduced_gradients.release()

    def attach(self) -> None:
        """Register what must be registered outside the engine; `close` undoes it."""

    def close(self) -> None:
        """End background threads and undo what is registered outside the engine."""
        self.reducer.reduced_gradients.close()

    def _start(self) -> None:
        self._arrived = [False] * len(self.portions)
        self._declared.clear()
        self._open = True
        self._stream.begin()

    def absent(self, indices: Collection[int]) -> None:
        """Expect no gradient of these parameters in this backward, on this rank."""
        new = {i for i in indices if not self._arrived[i]} - self._declared
        self._declared |= new
        self.reducer.skip(new, zeros=self._unwritten(new))

    def _unwritten(self, indices: Collection[int]) -> Collection[int]:
        """Return those of which the bucket buffers hold nothing of earlier backwards."""
        return indices

    def _foreseen(self) -> Collection[int]:
        """Return the parameters that will get no gradient in this backward: frozen since the engine was
        built.
        """
        with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
            return [t.index for t in self._param_infos if not t.parameter.requires_grad]

    def _arrive(self, index: int) -> None:
        if not self._open:
            raise UsageError(
                "expected engine.backward(loss), got a backward outside of it; do not call loss.backward()"
            )
        if index in self._declared:
            raise UsageError(
                f"expected no gradient for parameter {index} in this backward any more, got one; do not"
                " unfreeze parameters in a backward, or use a leaf module's weights outside of its forward"
            )
        if self._arrived[index]:
            raise UsageError(
                f"expected one gradient a backward for each parameter, got a second for parameter {index};"
                " reentrant activation checkpointing does this: use use_reentrant=False"
            )
        self._arrived[index] = self.contributed[index] = True

    def _write(self, bucket_buffers: BucketBuffers, index: int, gradient: Tensor, *, add: bool) -> None:
        """Write a gradient to the buffers that are reduced now."""
        for p, source in runs(self.portions[index], gradient):
            bucket_buffers.write(p, source, add=add)
            self.reducer.filled(p)


class ShardedGradients(Gradients):
    """Reduces in each backward; the sums of earlier backwards are in the reduced-gradient buffer."""

    def __init__(
        self, reducer: BucketReducer, param_infos: Sequence[ParamInfo], bucket_buffers: BucketBuffers
    ) -> None:
        super().__init__(reducer, param_infos)
        self._bucket_buffers = bucket_buffers

    def begin(self, boundary: AccumulationBoundary, loss: Tensor) -> None:
        self._start()
        self.reducer.begin(self._bucket_buffers, first=boundary.first, last=bool(boundary.last))
        self.absent(self._foreseen())

    def _accept(self, index: int, gradient: Tensor) -> None:
        self._arrive(index)
        self._write(self._bucket_buffers, index, gradient, add=False)

    def finish(self) -> None:
        self._open = False
        self.reducer.finish(missing=[i for i, there in enumerate(self._arrived) if not there])

    def bytes_by_category(self) -> dict[str, int]:
        return self._bucket_buffers.bytes_by_category()


class ReplicatedGradients(Gradients):
    """Reduces at the accumulation boundary.

    once: bucket buffers of a step with one backward. several: adds up the gradients of more backwards.
    """

    def __init__(
        self,
        reducer: BucketReducer,
        param_infos: Sequence[ParamInfo],
        *,
        once: BucketBuffers,
        several: Accumulator,
    ) -> None:
        super().__init__(reducer, param_infos)
        self._once, self._several = once, several
        self._bucket_buffers = once
        self._last: bool | None = None
        self._waits = False
        self._reduced = False
        self._waiting: dict[int, Tensor] = {}

    def begin(self, boundary: AccumulationBoundary, loss: Tensor) -> None:
        self._start()
        self._last, self._reduced = boundary.last, False
        self._waits = boundary.first and boundary.last is None and self._several.waits
        waiting, self._waiting = self._waiting, {}
        for index, gradient in waiting.items():
            self._several.add(index, gradient, first=True)
        if waiting:
            self._several.finish()
        if boundary.last:
            self._begin_to_reduce(self._once if boundary.first else self._several.sums())
            self.absent(self._foreseen())

    def _accept(self, index: int, gradient: Tensor) -> None:
        first = not self.contributed[index]
        self._arrive(index)
        if self._last:
            self._write(self._bucket_buffers, index, gradient, add=not first)
        elif self._waits:
            self._waiting[index] = gradient
        else:
            self._several.add(index, gradient, first=first)

    def finish(self) -> None:
        self._open = False
        if self._last:
            self._reduce()
        else:
            self._several.finish()

    def _unwritten(self, indices: Collection[int]) -> Collection[int]:
        return {i for i in indices if not self.contributed[i]}

    def settle(self) -> None:
        if not self._reduced:
            self._begin_to_reduce(self._once if self._waits else self._several.sums())
            waiting, self._waiting = self._waiting, {}
            for index, gradient in waiting.items():
                self._write(self._once, index, gradient, add=False)
            self._reduce()
        super().settle()

    def _begin_to_reduce(self, bucket_buffers: BucketBuffers) -> None:
        self._bucket_buffers = bucket_buffers
        self.reducer.begin(bucket_buffers, first=True, last=True)

    def _reduce(self) -> None:
        self.reducer.finish(missing=[i for i, there in enumerate(self.contributed) if not there])
        self._reduced = True

    def clear(self) -> None:
        super().clear()
        self._waiting.clear()
        self._several.clear()
        self._reduced = False

    def close(self) -> None:
        super().close()
        self._several.close()

    def bytes_by_category(self) -> dict[str, int]:
        waiting = {"gradients": sum(gradient.nbytes for gradient in self._waiting.values())}
        return bytes_of([waiting, self._once.bytes_by_category(), self._several.bytes_by_category()])
