"""No CUDA graph is captured around the operator that reduces."""

from typing import Any

import pytest
import torch

from zbench.engine.compiled.graph_pass import reduce_gradient


def test_no_cuda_graph_is_captured_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay would not call it, and gradients are sent from memory that must not be a graph's."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor import compile_fx

    from zbench.engine.compiled.backend import lower_inductor

    asked: dict[bool, bool] = {}

    def compile_inner(module: torch.fx.GraphModule, example: object, **options: Any) -> Any:
        asked[bool(options.get("is_backward"))] = bool(options["cudagraphs"])
        return make_boxed_func(module.forward)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_inner)
    weight = torch.ones(3, requires_grad=True)

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return lower_inductor(graph, inputs, lambda module: None)

    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        torch.compile(lambda x: (x * weight).sin().sum(), backend=backend)(torch.ones(3)).backward()
    assert asked == {False: True, True: False}
    assert torch.Tag.cudagraph_unsafe in reduce_gradient.tags
