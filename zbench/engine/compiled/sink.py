"""Gradients from compiled backward graphs and from hooks, with several contributions per parameter."""

from collections.abc import Callable

from torch import Tensor

from zbench.engine.compiled.ops import set_current
from zbench.engine.compiled.registry import StepRegistry
from zbench.engine.compiled.step_buffers import StepBucketBuffers, ZeroCopyStepBucketBuffers
from zbench.engine.gradients.reduced_buffers import ReducedGradientBuffer
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.gradients.sinks import ReplicatedGradients
from zbench.engine.policies import AccumulationBoundary
from zbench.engine.transport.choose import Transport
from zbench.errors import UsageError


class ReductionMemory:
    """All memory of a step's reductions: bucket buffers, the collectives' scratch, reduced gradients."""

    def __init__(
        self,
        once: ZeroCopyStepBucketBuffers,
        several: StepBucketBuffers,
        transport: Transport,
        reduced_gradients: ReducedGradientBuffer,
    ) -> None:
        """once, several: what a step with one backward writes to, and one with more."""
        self.once, self.several = once, several
        self._transport, self._reduced_gradients = transport, reduced_gradients

    def release_buckets(self) -> None:
        """Free every buffer that is not in use."""
        self.once.pool.drop()
        self.several.pool.drop()
        self._transport.release_scratch()

    def release(self) -> None:
        """Free everything; no collective may be in flight."""
        self.once.drop()
        self.several.drop()
        self.release_buckets()
        self._reduced_gradients.release()


class CompiledGradients(ReplicatedGradients):
    """Sums the contributions of one backward to one gradient per parameter, and reduces it when it is
    complete.

    All memory of the reduction belongs to the step: bucket buffers are freed at the end of the boundary
    backward, reduced gradients after the optimizer step, and both when a step is skipped or abandoned.
    """

    def __init__(
        self,
        reducer: BucketReducer,
        registry: StepRegistry,
        memory: ReductionMemory,
        uncompile: Callable[[], None],
    ) -> None:
        """uncompile: makes the model run its own code again."""
        super().__init__(reducer, (), once=memory.once, several=memory.several)
        self._registry = registry
        self.memory, self._uncompile = memory, uncompile
        self._partial: dict[int, Tensor] = {}
        self._absent: frozenset[int] = frozenset()

    def begin(self, boundary: AccumulationBoundary, loss: Tensor) -> None:
        """Start a backward, and learn from the autograd graph of its loss what it will bring."""
        self._registry.expect(loss)
        self._absent = frozenset(self._registry.absent())
        super().begin(boundary, loss)

    def _foreseen(self) -> frozenset[int]:
        return self._absent

    def accept(self, index: int, gradient: Tensor) -> None:
        """Take one contribution to parameter `index`'s gradient; it may be sent from where it is.

        Contributions of one backward are added in their own dtype and order of arrival, as autograd does.
        """
        if index in self._absent:
            raise UsageError(
                f"parameter {index} got a gradient that the autograd graph of the loss did not show"
            )
        if self._registry.arrived(index):
            partial = self._partial.pop(index, None)
            super().accept(index, gradient if partial is None else partial.add_(gradient))
        elif index in self._partial:
            self._partial[index].add_(gradient)
        else:
            self._partial[index] = gradient.clone()

    def finish(self) -> None:
        """End a backward; at the boundary everything is reduced, and every bucket freed."""
        while self._partial:
            super().accept(*self._partial.popitem())
        super().finish()
        self.memory.release_buckets()

    def settle(self) -> None:
        """Return when the step's sums stand in the targets."""
        super().settle()
        self.memory.release_buckets()

    def abandon(self) -> None:
        """Forget the step and free all it holds, in the middle of a backward or after it."""
        set_current(None)
        self._partial.clear()
        super().abandon()

    def clear(self) -> None:
        """Forget the step's gradients: the update has read them, or they were dropped."""
        super().clear()
        self._registry.forget()
        self.memory.release()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now, the targets apart."""
        partial = sum(gradient.nbytes for gradient in self._partial.values())
        return {"buckets": self.memory.once.pool.bytes + self.memory.several.pool.bytes + partial}

    def close(self) -> None:
        """Make the model run its own code again, and free everything."""
        super().close()
        self._uncompile()
        self.memory.release()
