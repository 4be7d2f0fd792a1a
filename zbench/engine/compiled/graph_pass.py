"""The pass over a backward graph: reduce each gradient where it is produced, and return None for it."""

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from zbench.engine.compiled.ops import reduce_gradient


@dataclass(frozen=True, slots=True)
class Reduced:
    """Which positions' gradients a backward graph reduces itself, and for which it yields none at all."""

    positions: tuple[int, ...]
    without_gradient: tuple[int, ...] = ()


def reduce_in_graph(graph_module: fx.GraphModule, positions: Collection[int]) -> Reduced:
    """Rewrite a backward graph in place; return what has become of the gradients of `positions`.

    positions: those inputs of the forward graph that are parameters of the engine. An input that the graph
    yields no gradient for, or whose place among the outputs is not known, is left alone: autograd then
    delivers its gradient, if there is one, to the ordinary hooks.
    """
    graph = graph_module.graph
    output = _output_node(graph)
    results = list(output.args[0])  # type: ignore[arg-type]
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


def _output_node(graph: fx.Graph) -> fx.Node:
    output: fx.Node
    (output,) = graph.find_nodes(op="output")
    return output


def _gradient_slots(descriptions: list[Any], positions: Collection[int]) -> list[tuple[int, int]]:
    """Return pairs (slot among the outputs, position among the inputs).

    AOT autograd describes each output of a backward graph by the input it is the gradient of; counting
    outputs instead would be wrong wherever it merges inputs or adds some of its own.
    """
    found = []
    for slot, description in enumerate(descriptions):
        position = getattr(getattr(description, "grad_of", None), "idx", None)
        if position is not None and position in positions:
            found.append((slot, position))
    return found


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
