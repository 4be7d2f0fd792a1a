"""The pass over a backward graph: reduce each gradient where it is produced, and return None for it.

The operator that it inserts hands a gradient to the call that this backward is of. It carries a position
among its graph's inputs and nothing else: no engine, no parameter. One compiled graph serves many calls:
layers that share code, several engines, cached code of another process. What a position means is known only
while a call's backward runs: that call is *current* on the thread that runs it.
"""

import operator
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx

NAMESPACE = "zbench"


class Receiver(Protocol):
    """One call of a compiled graph, as its backward sees it."""

    def receive(self, position: int, grad: Tensor) -> None:
        """Take the gradient of the graph's input at `position`; `grad` may be kept, and must not be
        changed.
        """


class _Current(threading.local):
    receiver: Receiver | None = None


_current = _Current()


def set_current(receiver: Receiver | None) -> None:
    """Set the call to which the operators on this thread deliver gradients; None: no call."""
    _current.receiver = receiver


def deliver(grad: Tensor, position: int) -> None:
    """Hand a gradient to the call that is current: the operator's kernel."""
    receiver = _current.receiver
    if receiver is None:
        raise RuntimeError(
            f"a compiled backward graph produced the gradient of its input {position}, but no engine is"
            " taking gradients: run backward through engine.backward(loss), and not after engine.close()"
        )
    receiver.receive(position, grad)


# The gradient is declared mutated though it is only read: a mutation is the one effect that dead-code
# elimination, functional passes and inductor's scheduler all respect in an operator without results.
# `flexible_layout`: any strides will do, so inductor need not copy a transposed gradient into rows first.
# `cudagraph_unsafe`: a CUDA graph would call this Python code once, when it is captured, and never when it is
# replayed; inductor splits its graph at such an operator.
# Caches of compiled code outlive versions of this package: with another contract it needs another name.
_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "reduce_lent_gradient(Tensor(a!) grad, int position) -> ()",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout, torch.Tag.cudagraph_unsafe),
)
_library.impl("reduce_lent_gradient", deliver, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(f"{NAMESPACE}::reduce_lent_gradient", lambda grad, position: None, lib=_library)

reduce_gradient = torch.ops.zbench.reduce_lent_gradient.default


@dataclass(frozen=True, slots=True)
class Reduced:
    """Which positions' gradients a backward graph reduces itself, and for which it yields none at all."""

    positions: tuple[int, ...]
    without_gradient: tuple[int, ...] = ()


def reduce_in_graph(graph_module: fx.GraphModule, positions: Collection[int]) -> Reduced:
    """Rewrite a backward graph in place; return what has become of the gradients of `positions`.

    positions: those inputs of the forward graph that are parameters of the engine. An input that the graph
    yields no gradient for, or whose place among the outputs is not known, is left alone. Autograd then
    delivers its gradient, if there is one, to the ordinary hooks.
    """
    graph = graph_module.graph
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    descriptions = list(output.meta.get("desc", ()))
    reduced: list[int] = []
    yielded: set[int] = set()
    for slot, position in _gradient_slots(descriptions, positions):
        gradient = results[slot]
        if not isinstance(gradient, fx.Node):
            continue
        yielded.add(position)
        if _has_other_readers(gradient, results, output):
            gradient = _insert_after(gradient, torch.ops.aten.clone.default, (gradient,), gradient.meta)
        _insert_after(gradient, reduce_gradient, (gradient, position), {"val": None})
        results[slot] = descriptions[slot] = None
        reduced.append(position)
    output.args = (tuple(results),)
    _forget_results(output, results, descriptions)
    graph.lint()
    graph_module.recompile()
    without = set(positions) - yielded if descriptions else ()
    return Reduced(tuple(reduced), tuple(sorted(without)))


def _gradient_slots(descriptions: list[Any], positions: Collection[int]) -> list[tuple[int, int]]:
    """Return pairs (slot among the outputs, position among the inputs).

    AOT autograd describes each output of a backward graph by the input it is the gradient of. Counting
    outputs instead would be wrong wherever it merges inputs or adds some of its own.
    """
    gradients = []
    for slot, description in enumerate(descriptions):
        position = getattr(getattr(description, "grad_of", None), "idx", None)
        if position is not None and position in positions:
            gradients.append((slot, position))
    return gradients


def _has_other_readers(gradient: fx.Node, results: list[Any], output: fx.Node) -> bool:
    """Return whether the memory of `gradient` is read by anyone but this one output.

    The operator is declared to mutate its argument, so an argument that others read, be it through a view or
    its base, must become a value of its own.
    """
    if sum(result is gradient for result in results) > 1:
        return True
    node, allowed = gradient, output
    while True:
        if node.op != "call_function" or any(user is not allowed for user in node.users):
            return True
        base = _base_of_view(node)
        if base is None:
            return False
        node, allowed = base, node


def _base_of_view(node: fx.Node) -> fx.Node | None:
    """Return the node whose memory `node` is a view of, or None where it has memory of its own."""
    source = next((argument for argument in node.args if isinstance(argument, fx.Node)), None)
    maker = source if node.target is operator.getitem else node
    return source if maker is not None and _returns_views(maker.target) else None


def _returns_views(target: object) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(value.alias_info is not None for value in schema.returns)


def _insert_after(node: fx.Node, target: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> fx.Node:
    place = node
    while place.next.op == "placeholder":  # a gradient may itself be an input: stay behind all of them
        place = place.next
    with node.graph.inserting_after(place):
        inserted = node.graph.call_function(target, args)
    inserted.meta = dict(meta)
    return inserted


def _forget_results(output: fx.Node, results: list[Any], descriptions: list[Any]) -> None:
    """Keep true what later passes read about outputs: one that is None has no description and no strides."""
    if descriptions:
        output.meta["desc"] = descriptions
    visible = output.meta.get("user_visible_output_idxs")
    if visible is not None:
        output.meta["user_visible_output_idxs"] = [slot for slot in visible if results[slot] is not None]
