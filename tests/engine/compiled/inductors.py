"""What the ranks of `test_inductor` run: they import inductor, and compile, once for all tests."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from tests.engine.compiled import harness, models
from tests.engine.compiled.cases import BASE, make, train_recorded
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec

_QUICK = harness.quick_inductor()
_QUICK.__enter__()


def train_with_inductor(
    group: dist.ProcessGroup, name: str, spec: dict[str, Any], *, steps: int = 3, backwards: int = 1
) -> None:
    """Assert the bits of plain inductor-compiled stage 0, and nearness to eager ZeRO-1."""
    eager = train_recorded(group, name, spec, steps=steps, backwards=backwards).parameters
    with mock.patch.object(torch.compiler, "cudagraph_mark_step_begin") as marked:
        compiled = {**spec, "compile": "inductor"}
        trained = train_recorded(group, name, compiled, steps=steps, backwards=backwards)
    assert marked.call_count == steps, "CUDA graphs hear of each step"
    model, batch = make(name)
    model.compile()
    engine = build_engine(
        model,
        EngineSpec.model_validate({**BASE, **spec, "zero_stage": 0, "offload_optimizer": "none"}),
        group,
    )
    for step, info in enumerate(trained.infos):
        for micro in range(backwards):
            engine.backward(model(*batch(dist.get_rank(group) + 100 * micro, step)).float())
        assert engine.step() == info
    for key, value in engine.full_parameters().items():
        assert torch.equal(trained.parameters[key], value), key
        torch.testing.assert_close(trained.parameters[key], eager[key], rtol=1e-5, atol=1e-6)
    engine.close()


def orders(group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """Return in which order weights get gradients with eager's kernels, and with inductor's; assert that none
    of these changes once it was delivered.
    """
    sequences = []
    for lowering in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        compiled = harness.Harness(models.Headed(), lowering)
        gradients: list[tuple[Tensor, Tensor]] = []
        accept = compiled.sink.accept

        def keep(
            index: int,
            gradient: Tensor,
            gradients: list[tuple[Tensor, Tensor]] = gradients,
            accept: Any = accept,
        ) -> None:
            gradients.append((gradient, gradient.clone()))
            accept(index, gradient)

        compiled.sink.accept = keep  # type: ignore[method-assign]
        compiled.backward(lambda m: m(models.tokens(length=24)))
        assert len(gradients) == len(compiled.parameters)
        assert all(torch.equal(gradient, then) for gradient, then in gradients)
        sequences.append([i for i in compiled.sink.order if compiled.parameters[i].dim() > 1])
    return sequences[0], sequences[1]


def shapes_are_dynamic(group: dist.ProcessGroup) -> None:
    """Assert that shapes may be dynamic from the start."""
    torch._dynamo.reset()
    harness.shapes_are_dynamic("inductor", 1e-5)
