"""The pass puts each reduction where its gradient is produced, and nothing removes it again."""

import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from zbench.engine.compiled.graph_pass import Reduced, reduce_gradient, reduce_in_graph

aten = torch.ops.aten


def finish(graph: fx.Graph, *gradients: fx.Node | None, described: bool = True) -> fx.GraphModule:
    """Return `gradients` from a backward graph, gradient k described as that of input k."""
    output = graph.output(tuple(gradients))
    if described:
        output.meta["desc"] = [SimpleNamespace(grad_of=SimpleNamespace(idx=k)) for k in range(len(gradients))]
        output.meta["user_visible_output_idxs"] = list(range(len(gradients)))
    return fx.GraphModule(torch.nn.Module(), graph)


def reductions(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="call_function", target=reduce_gradient))


def results(module: fx.GraphModule) -> Any:
    (output,) = module.graph.find_nodes(op="output")
    return output.args[0]


def product(graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    x, tangent = graph.placeholder("x"), graph.placeholder("tangent")
    return x, graph.call_function(aten.mm.default, (x, tangent))


def test_reduces_right_behind_the_producer_and_returns_none() -> None:
    graph = fx.Graph()
    x, weight_gradient = product(graph)
    input_gradient = graph.call_function(aten.sin.default, (x,))
    module = finish(graph, weight_gradient, input_gradient)

    assert reduce_in_graph(module, {0}) == Reduced((0,))

    (reduction,) = reductions(module)
    assert reduction.prev is weight_gradient
    assert reduction.args == (weight_gradient, 0)
    assert results(module) == (None, input_gradient)
    (output,) = module.graph.find_nodes(op="output")
    assert output.meta["user_visible_output_idxs"] == [1]
    assert output.meta["desc"][0] is None


def _read_elsewhere(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, gradient = product(graph)
    return gradient, graph.call_function(aten.sin.default, (gradient,))


def _two_parameters(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, gradient = product(graph)
    return gradient, gradient


def _an_input(graph: fx.Graph) -> tuple[fx.Node, ...]:
    graph.placeholder("x")
    tangent = graph.placeholder("tangent")
    graph.placeholder("y")
    return (tangent,)


def _view_of_shared_memory(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, base = product(graph)
    return graph.call_function(aten.t.default, (base,)), graph.call_function(aten.sin.default, (base,))


def _part_of_shared_memory(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, base = product(graph)
    halves = graph.call_function(aten.split.Tensor, (base, 1))
    return tuple(graph.call_function(operator.getitem, (halves, k)) for k in range(2))


def _transposed(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, base = product(graph)
    return (graph.call_function(aten.t.default, (base,)),)


def _results_with_memory_of_their_own(graph: fx.Graph) -> tuple[fx.Node, ...]:
    _, base = product(graph)
    normalized = graph.call_function(aten.native_layer_norm.default, (base, [4], None, None, 1e-5))
    return tuple(graph.call_function(operator.getitem, (normalized, k)) for k in range(3))


@pytest.mark.parametrize(
    ("build", "taken", "clones"),
    [
        (_read_elsewhere, 1, 1),
        (_two_parameters, 2, 2),
        (_an_input, 1, 1),
        (_view_of_shared_memory, 1, 1),
        (_part_of_shared_memory, 2, 2),
        (_transposed, 1, 0),
        (_results_with_memory_of_their_own, 3, 0),
    ],
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


def test_leaves_absent_and_undescribed_gradients_alone() -> None:
    graph = fx.Graph()
    _, gradient = product(graph)
    module = finish(graph, None, gradient)
    assert reduce_in_graph(module, {0}) == Reduced((), without_gradient=(0,))

    graph = fx.Graph()
    _, gradient = product(graph)
    undescribed = finish(graph, gradient, described=False)
    assert reduce_in_graph(undescribed, {0}) == Reduced(())
    assert results(undescribed) == (gradient,)
