"""What a backward will deliver: calls of compiled graphs, and what each parameter still gets from them.

The registry belongs to the engine's step and not to a graph. Graphs come and go (breaks, recompilations, one
graph for many layers); what a backward will deliver is read from the autograd graph of the loss itself, at
run time. So it is exact, for exactly this backward: forwards that are never differentiated do not count, nor
does the order in which graphs happened to be compiled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from zbench.engine.compiled.graph_pass import Reduced, set_current
from zbench.errors import UsageError

_KEY = "zbench.compiled.call"
_NODE_NAME = "CompiledFunctionBackward"

# A reentrant checkpoint builds and differentiates its part of the graph only while backward runs.
_HIDES_ITS_GRAPH = "CheckpointFunctionBackward"

Deliver = Callable[[nn.Parameter, Tensor], None]
"""Takes a contribution to a parameter's gradient; the tensor may be kept, and must not be changed."""


class ReductionPlan:
    """What a graph's backward does with parameters' gradients: a guess until it is compiled, then known."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        """positions: the graph's inputs that are parameters; all their gradients are taken to be reduced."""
        self.inputs = positions
        self.reduced = Reduced(positions)


class GraphCall:
    """One forward call of a compiled graph, attached to the autograd node that will run its backward."""

    def __init__(self, deliver: Deliver, plan: ReductionPlan, parameters: Mapping[int, nn.Parameter]) -> None:
        """parameters: by position among the graph's inputs, in this call."""
        self._deliver, self._plan, self._parameters = deliver, plan, parameters

    def attach(self, node: Node) -> None:
        """Become current while `node` runs."""
        node.metadata[_KEY] = self  # type: ignore[index]  # a property that torch declares as a method
        node.register_prehook(self._enter)
        node.register_hook(self._leave)

    def receive(self, position: int, grad: Tensor) -> None:
        """Pass on the gradient of the graph's input at `position`."""
        self._deliver(self._parameters[position], grad)

    def contributions(self) -> Iterator[nn.Parameter]:
        """Yield every parameter whose gradient this call's backward will deliver."""
        return (self._parameters[position] for position in self._plan.reduced.positions)

    def withheld(self) -> Iterator[nn.Parameter]:
        """Yield every parameter that the graph reads but that autograd will get no gradient for."""
        reduced = self._plan.reduced
        return (self._parameters[position] for position in (*reduced.positions, *reduced.without_gradient))

    def _enter(self, _: Sequence[Tensor]) -> None:
        set_current(self)

    def _leave(self, _: Sequence[Tensor], __: Sequence[Tensor]) -> None:
        set_current(None)


def call_of(node: Node) -> GraphCall | None:
    """Return the call whose backward `node` is, or None for every other node."""
    call = node.metadata.get(_KEY)  # type: ignore[attr-defined]
    return call if isinstance(call, GraphCall) else None


def histories(values: Iterable[Any]) -> set[Node]:
    """Return the autograd nodes that produced `values`."""
    return {value.grad_fn for value in values if isinstance(value, Tensor) and value.grad_fn is not None}


def find_backward(results: Iterable[Any], before: set[Node]) -> Node | None:
    """Return the node that runs a compiled backward between `results` and the inputs' histories `before`.

    AOT autograd may hand out views and copies of what its node produced, so the node can lie some steps back.
    """
    pending = list(histories(results) - before)
    seen = set(before)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name() == _NODE_NAME:
            return node
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
    return None


class StepRegistry:
    """Counts, for each parameter, the contributions that are still to come in the running backward."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
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
