"""The pass that puts reductions into a graph clones what others read, and nothing removes a reduction."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from zbench.engine.compiled.graph_pass import Reduced, reduce_gradient, reduce_in_graph

aten = torch.ops.aten


def finish(graph: fx.Graph, *gradients: fx.Node) -> fx.GraphModule:
    """Return `gradients` from a backward graph, gradient k described as that of input k."""
    output = graph.output(tuple(gradients))
    output.meta["desc"] = [SimpleNamespace(grad_of=SimpleNamespace(idx=k)) for k in range(len(gradients))]
    output.meta["user_visible_output_idxs"] = list(range(len(gradients)))
    return fx.GraphModule(torch.nn.Module(), graph)


def reductions(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="call_function", target=reduce_gradient))


def product(graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    x, tangent = graph.placeholder("x"), graph.placeholder("tangent")
    return x, graph.call_function(aten.mm.default, (x, tangent))


def _read_elsewhere(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, gradient = product(graph)
    return gradient, graph.call_function(aten.sin.default, (gradient,))


def _two_parameters(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, gradient = product(graph)
    return gradient, gradient


def _view_of_shared_memory(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, base = product(graph)
    return graph.call_function(aten.t.default, (base,)), graph.call_function(aten.sin.default, (base,))


def _transposed(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, base = product(graph)
    return (graph.call_function(aten.t.default, (base,)),)


@pytest.mark.parametrize(
    ("build", "taken", "clones"),
    [(_read_elsewhere, 1, 1), (_two_parameters, 2, 2), (_view_of_shared_memory, 1, 1), (_transposed, 1, 0)],
)
def test_clones_a_gradient_that_others_read_and_no_other(build: Any, taken: int, clones: int) -> None:
    graph = fx.Graph()
    module = finish(graph, *build(graph))
    assert reduce_in_graph(module, range(taken)) == Reduced(tuple(range(taken)))
    module.graph.eliminate_dead_code()  # which keeps every reduction
    assert len(reductions(module)) == taken
    copies = module.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert len(copies) == clones
    for copy in copies:
        assert [user.target for user in copy.users] == [reduce_gradient]
