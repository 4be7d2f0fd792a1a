"""One call of a compiled graph: which parameters its inputs are, and which autograd node is its backward."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from zbench.engine.compiled.graph_pass import Reduced
from zbench.engine.compiled.ops import set_current

_KEY = "zbench.compiled.call"
_NODE_NAME = "CompiledFunctionBackward"

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
