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
from zbench.engine.gradients.bucket import Buckets
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.gradients.storage import SendingMemory
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.policies import AccumulationBoundary
from zbench.engine.transport.choose import Transport
from zbench.errors import UsageError


class CompiledGradients(Gradients):
    """Sums the contributions of one backward to one gradient per parameter, and reduces it when it is
    complete.

    On the device all memory of the reduction belongs to the step. Buckets are freed at the end of the
    boundary backward, reduced gradients after the optimizer step; both when a step is skipped or abandoned.
    """

    def __init__(
        self,
        buckets: Buckets,
        param_infos: Sequence[ParamInfo],
        memory: SendingMemory,
        transport: Transport,
        model: nn.Module,
        lowering: str,
    ) -> None:
        """transport: has receive buffers to free. lowering: `aot_eager` or `inductor`."""
        super().__init__(buckets, (), memory)
        registry = StepRegistry([t.parameter for t in param_infos])
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
        self.release_buckets()
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
        self.buckets.clear()
        self.release_buckets()
        self.sums.release()

    def release_buckets(self) -> None:
        """Free every buffer that is not in use."""
        self.memory.drop()
        self._transport.release_scratch()
