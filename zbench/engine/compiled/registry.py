"""The step's registry: the parameters in training, and what each still gets in the running backward.

It belongs to the engine's step and not to a graph. Graphs come and go (breaks, recompilations, one graph for
many layers); what a backward will deliver is read from the autograd graph of the loss itself, at run time. So
it is exact, for exactly this backward: forwards that are never differentiated do not count, nor does the
order in which graphs happened to be compiled.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from zbench.engine.compiled.calls import call_of
from zbench.errors import UsageError

# A reentrant checkpoint builds and differentiates its part of the graph only while backward runs.
_HIDES_ITS_GRAPH = "CheckpointFunctionBackward"


class StepRegistry:
    """Counts, for each parameter, the contributions that are still to come in the running backward."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """parameters: every trained parameter once; its place in this sequence is its index."""
        self._parameters = tuple(parameters)
        self._index = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        self._outstanding = [0] * len(self._parameters)
        self.foreseen = True
        """Whether the counts are all there will be; otherwise more may come while backward runs."""

    def index_of(self, value: object) -> int | None:
        """Return the index of a parameter, or None for all that is not one of the engine's parameters."""
        return self._index.get(id(value))

    def check_hooks(self) -> None:
        """Raise UsageError for a gradient hook of the user: compiled backward graphs run none."""
        for parameter in self._parameters:
            if parameter._backward_hooks or len(parameter._post_accumulate_grad_hooks) > 1:
                raise UsageError(
                    f"compile: expected no gradient hooks on parameters, got one on a parameter of shape"
                    f" {tuple(parameter.shape)}, which the compiled backward would not run; remove it, or set"
                    " compile: off"
                )

    def expect(self, loss: Tensor) -> None:
        """Count what `loss.backward()` will deliver: for each parameter one contribution a compiled call, and
        one from autograd's own accumulation if uncompiled code uses it too."""
        self.forget()
        accumulated: set[int] = set()
        for node in _nodes_behind(loss):
            self.foreseen &= node.name() != _HIDES_ITS_GRAPH
            call = call_of(node)
            if call is None:
                accumulated |= self._leaves(node)
                continue
            accumulated |= self._leaves(node) - self._indices(call.withheld())
            for index in self._indices(call.contributions()):
                self._outstanding[index] += 1
        for index in accumulated:
            self._outstanding[index] += 1

    def absent(self) -> list[int]:
        """Return the parameters that the running backward is known to bring nothing for."""
        return [index for index, count in enumerate(self._outstanding) if count == 0 and self.foreseen]

    def arrived(self, index: int) -> bool:
        """Note one contribution to parameter `index`; return whether its gradient is complete now."""
        self._outstanding[index] -= 1
        return self._outstanding[index] <= 0 and self.foreseen

    def outstanding(self, index: int) -> int:
        """Return how many contributions to parameter `index` are still to come."""
        return self._outstanding[index]

    def forget(self) -> None:
        """Expect nothing."""
        self._outstanding = [0] * len(self._parameters)
        self.foreseen = True

    def _leaves(self, node: Node) -> set[int]:
        """Return the parameters whose gradient `node` hands to autograd's accumulation."""
        return self._indices(getattr(parent, "variable", None) for parent, _ in node.next_functions)

    def _indices(self, values: Iterable[object]) -> set[int]:
        return {index for value in values if (index := self.index_of(value)) is not None}


def _nodes_behind(loss: Tensor) -> Iterator[Node]:
    """Yield every autograd node that the backward of `loss` runs, once."""
    pending = [loss.grad_fn] if loss.grad_fn is not None else []
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        parents = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= parents
        pending.extend(parents)
