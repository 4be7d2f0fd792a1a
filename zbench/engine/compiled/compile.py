"""Compiled ZeRO-1: a model that is compiled in place, and the gradients that its graphs deliver.

Gradient memory belongs to a step: it is allocated when the step needs it and freed after it. There may be
several contributions to one parameter's gradient, from compiled backward graphs and from hooks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zbench.engine.compiled.backend import compile_in_place, undo_compile
from zbench.engine.compiled.graph_pass import set_current
from zbench.engine.compiled.registry import StepRegistry
from zbench.engine.gradients.accumulators import Accumulator, BucketBufferFactory
from zbench.engine.gradients.bucket_buffers import BucketBuffers, PooledBucketBuffers, ZeroCopyBucketBuffers
from zbench.engine.gradients.reduced_buffers import ReductionConfig, TransientReducedGradientBuffer
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.gradients.sinks import ReplicatedGradients
from zbench.engine.memory.buffers import MemoryLayout, bytes_of
from zbench.engine.memory.kinds import Memory
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.partition import Bucket
from zbench.engine.policies import AccumulationBoundary
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.choose import Transport
from zbench.errors import UsageError


class StepBufferFactory(BucketBufferFactory):
    """Makes bucket buffers that are taken from pools, all of them."""

    def direct(self, *, accumulates: bool) -> BucketBuffers:
        return ZeroCopyBucketBuffers(self._layout, self.single_use, self._dtypes.communication_dtypes)

    def _kept(self, memory: Memory) -> BucketBuffers:
        kept = [self._dtypes.accumulation] * len(self._dtypes.parameters)
        return self.sent(PooledBucketBuffers(self._layout, kept, ScratchPool(memory.device, memory)))


class StepReducedGradientBuffer(TransientReducedGradientBuffer):
    """Allocates and frees the memory of all buckets at once, at the step's first reduction."""

    def target(self, bucket: Bucket) -> Tensor:
        for flat in self.sums.flats:
            if flat.allocate():
                flat.buffers[0].zero_()
        return super().target(bucket)

    def _memory_layout(self, config: ReductionConfig) -> MemoryLayout:
        return config.memory_layout


class CompiledGradients(ReplicatedGradients):
    """Sums the contributions of one backward to one gradient per parameter, and reduces it when it is
    complete.

    On the device all memory of the reduction belongs to the step: bucket buffers are freed at the end of the
    boundary backward, reduced gradients after the optimizer step, both when a step is skipped or abandoned.
    """

    def __init__(
        self,
        reducer: BucketReducer,
        registry: StepRegistry,
        buffers: tuple[BucketBuffers, Accumulator],
        transport: Transport,
        model: nn.Module,
        lowering: str,
    ) -> None:
        """buffers: those of a step with one backward, and what adds up several."""
        once, several = buffers
        super().__init__(reducer, (), once=once, several=several)
        self._registry, self._transport = registry, transport
        self._model, self._lowering = model, lowering
        self._partial: dict[int, Tensor] = {}
        self._absent: frozenset[int] = frozenset()

    def begin(self, boundary: AccumulationBoundary, loss: Tensor) -> None:
        """Start a backward, and learn from the autograd graph of its loss what it will bring."""
        self._registry.check_hooks()
        self._registry.expect(loss)
        self._absent = frozenset(self._registry.absent())
        super().begin(boundary, loss)

    def _foreseen(self) -> frozenset[int]:
        return self._absent

    def _accept(self, index: int, gradient: Tensor) -> None:
        """Take one contribution to parameter `index`'s gradient; it may be sent from where it is.

        Contributions of one backward are added in their own dtype and order of arrival, as autograd does.
        """
        if index in self._absent:
            raise UsageError(
                f"parameter {index} got a gradient that the autograd graph of the loss did not show"
            )
        if self._registry.arrived(index):
            partial = self._partial.pop(index, None)
            super()._accept(index, gradient if partial is None else partial.add_(gradient))
        elif index in self._partial:
            self._partial[index].add_(gradient)
        else:
            self._partial[index] = gradient.clone()

    def finish(self) -> None:
        """End a backward; at the boundary everything is reduced, and every bucket freed."""
        while self._partial:
            super()._accept(*self._partial.popitem())
        super().finish()
        self.release_buckets()

    def settle(self) -> None:
        """Return when the step's sums stand in the targets."""
        super().settle()
        self.release_buckets()

    def abandon(self) -> None:
        """Forget the step and free all it holds, in the middle of a backward or after it."""
        set_current(None)
        self._partial.clear()
        super().abandon()

    def clear(self) -> None:
        """Forget the step's gradients: the update has read them, or they were dropped."""
        super().clear()
        self._registry.forget()
        self._release()
        if self._lowering == "inductor":  # else CUDA graphs keep each step's memory while a loss lives
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now, the targets apart."""
        partial = {"buckets": sum(gradient.nbytes for gradient in self._partial.values())}
        return bytes_of([partial, super().bytes_by_category()])

    def attach(self) -> None:
        """Make the model run compiled code, whose gradients come here."""
        compile_in_place(self._model, self._lowering, self._registry, self)

    def close(self) -> None:
        """Make the model run its own code again, and free everything."""
        super().close()
        undo_compile(self._model)
        self._release()

    def release_buckets(self) -> None:
        """Free every buffer that is not in use."""
        self._once.release(used=False)
        self._several.release(used=False)
        self._transport.release_scratch()

    def _release(self) -> None:
        """Free everything; no collective may be in flight."""
        self._once.release(used=True)
        self._several.release(used=True)
        self.release_buckets()
        self.reducer.reduced_gradients.release()


def compile_model(
    model: nn.Module, param_infos: Sequence[ParamInfo], config: ReductionConfig, lowering: str
) -> tuple[StepReducedGradientBuffer, CompiledGradients]:
    """Return the reduced-gradient buffer and the gradients of `model`, which `attach` compiles in place.

    `model(...)` remains the caller's way to run it. lowering: `aot_eager` or `inductor`.
    """
    reduced_gradients = StepReducedGradientBuffer(config)
    reducer = BucketReducer(config.collectives, reduced_gradients, in_flight=config.in_flight)
    registry = StepRegistry([t.parameter for t in param_infos])
    factory = StepBufferFactory(config, reduced_gradients.sums)
    buffers = factory.direct(accumulates=False), factory.accumulating(reducer.portions)
    gradients = CompiledGradients(reducer, registry, buffers, config.transport, model, lowering)
    return reduced_gradients, gradients
