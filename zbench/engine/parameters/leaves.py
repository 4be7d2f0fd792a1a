"""Leaf modules: the whole subtree is gathered at once, and held from forward's begin to its end and through
its backward.

Which experts of a mixture a rank uses depends on its data; what it gathers must not. So every rank gathers a
leaf module's parameters when its forward begins, and again when the first gradient of its outputs is there.
When the gradients of its inputs are, parameters without a gradient count as zero on this rank. So no rank
waits for a reduction that another one does not begin. The autograd graph gets no nodes, only hooks.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils._pytree import tree_leaves

from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.saved import uncompiled
from zbench.errors import UsageError

Absent = Callable[[Collection[int]], None]
"""Takes the indices of parameters that get no gradient on this rank in the backward that is running."""


def find_leaves(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the modules with these names, or of classes with these names; UsageError for a name of none."""
    leaves: list[nn.Module] = []
    for name in names:
        meant = [m for path, m in model.named_modules() if name in (path, type(m).__name__)]
        if not meant:
            classes = ", ".join(sorted({type(m).__name__ for m in model.modules()}))
            raise UsageError(
                f"leaf_modules: expected the name of a module or of its class, got {name!r}; the model has"
                f" modules of {classes}"
            )
        leaves += meant
    return leaves


class LeafModules:
    """The leaf `modules` of one model. `absent` is told which parameters get no gradient in a backward."""

    def __init__(
        self,
        modules: Collection[nn.Module],
        gatherer: Gatherer,
        param_infos: Sequence[ParamInfo],
        absent: Absent,
    ) -> None:
        self.modules, self.gatherer = modules, gatherer
        self._indices = {id(t.parameter): t.index for t in param_infos}
        self._absent = absent

    @uncompiled
    def watch(self, module: nn.Module, inputs: object) -> Callable[[object], None]:
        """A leaf module is called with `inputs`; return what to call with its outputs."""
        tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.grad_fn is not None]
        use = LeafUse(self, list(module.parameters()), len(tensors))
        for tensor in tensors:
            tensor.register_hook(use.input_arrived)  # type: ignore[no-untyped-call]
        return partial(use.watch_outputs, [tensor.grad_fn for tensor in tensors])

    def report(self, parameters: Sequence[nn.Parameter]) -> None:
        """The backward of a leaf module with these parameters has ended: say which get no gradient."""
        members = [p for p in parameters if id(p) in self._indices]
        self._absent([self._indices[id(p)] for p in members if not _in_graph(p)])


class LeafUse:
    """One call of a leaf module, and its hooks. It refers to no node of the graph that refers to it."""

    def __init__(self, leaves: LeafModules, parameters: Sequence[nn.Parameter], inputs: int) -> None:
        self._leaves, self._gatherer, self._held = leaves, leaves.gatherer, leaves.gatherer.held_in_backward
        self._parameters, self._inputs, self._missing = parameters, inputs, inputs

    @uncompiled
    def watch_outputs(self, inputs: Sequence[Node | None], outputs: object) -> None:
        """Begin when the first gradient of an output is there; `inputs` are the nodes of the inputs."""
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.grad_fn not in inputs:
                tensor.register_hook(partial(self._output_arrived, inputs))  # type: ignore[no-untyped-call]

    def _output_arrived(self, inputs: Sequence[Node | None], gradient: Any) -> None:
        self._begin(lambda: sum(torch._C._will_engine_execute_node(node) for node in inputs))  # type: ignore[arg-type]

    def input_arrived(self, gradient: Any) -> None:
        """The gradient of one more input is there: end with the last one, whatever else the call gave."""
        self._begin(lambda: self._inputs)
        self._missing -= 1
        if not self._missing:
            self._gatherer.end_use(self._held.pop(self))
            self._leaves.report(self._parameters)

    def _begin(self, inputs: Callable[[], int]) -> None:
        """Gather, if that has not been done in this backward, in which so many inputs get a gradient."""
        if self not in self._held:
            self._missing = inputs()
            groups = self._held[self] = self._gatherer.groups_of(self._parameters)
            self._gatherer.begin_use(groups)


def _in_graph(parameter: nn.Parameter) -> bool:
    """Whether the backward that is running computes the parameter's gradient, now or by another call."""
    with torch._C.DisableTorchFunctionSubclass():  # a released parameter, too
        if not parameter.requires_grad:
            return False
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(parameter).node))
