"""What a sweep file refuses, `build_engine` refuses, too: before it has changed the model, with a remedy."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zbench.engine import Instruments, build_engine
from zbench.engine.adam import cuda_unavailable_reason
from zbench.engine.assembly import settings
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        ({"zero_stage": 0, "offload_optimizer": "cpu"}, "set zero_stage: 1, 2 or 3"),
        ({"zero_stage": 2, "compile": "aot_eager"}, "set zero_stage: 1"),
        ({"zero_stage": 1, "compile": "aot_eager", "reduce_at": "each_backward"}, "set reduce_at: auto"),
    ],
)
def test_keys_that_cannot_be_together_are_refused(keys: dict[str, Any], remedy: str) -> None:
    model = nn.Linear(4, 4)
    weight = model.weight.data_ptr()
    with pytest.raises(UsageError, match=remedy):
        build_engine(model, EngineSpec.model_validate(keys))
    assert model.weight.data_ptr() == weight


@pytest.mark.parametrize("stage", [0, 3])
def test_a_block_larger_than_the_memory_limit_is_refused(stage: int) -> None:
    keys = {"zero_stage": stage, "param_persistence_threshold": 0}
    limited = Instruments(memory_limit=8192)
    for most in (512, 4096):
        spec = EngineSpec.model_validate(keys | {"reduce_bucket_size": most})
        model = nn.Linear(64, 64, bias=False)
        if most == 512:
            build_engine(model, spec, instruments=limited).close()
            continue
        with pytest.raises(UsageError, match="one of 4096 elements, 16 KiB; set reduce_bucket_size: 256 or"):
            build_engine(model, spec, instruments=limited)
        assert torch.equal(model(torch.eye(64)), model.weight.T), "the model is as it was"


def test_inductor_on_a_gpu_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EngineSpec.model_validate({"zero_stage": 1, "compile": "inductor"})
    there: dict[str, object] = {}
    monkeypatch.setattr(settings, "find_spec", there.get)
    settings.check(spec, torch.device("cpu"))
    settings.check(spec.model_copy(update={"compile": "aot_eager"}), torch.device("cuda"))
    with pytest.raises(UsageError, match="pip install triton, or set compile: aot_eager"):
        settings.check(spec, torch.device("cuda"))
    there["triton"] = object()
    settings.check(spec, torch.device("cuda"))


@pytest.mark.skipif(cuda_unavailable_reason() is None, reason="the CUDA kernels can be used here")
def test_stochastic_rounding_on_a_gpu_needs_zbenchs_kernels() -> None:
    moments = {"moments_dtype": "bfloat16", "moments_rounding": "stochastic"}
    spec = EngineSpec.model_validate({"zero_stage": 1, "optimizer": moments})
    settings.check(spec, torch.device("cpu"))
    settings.check(spec.model_copy(update={"offload_optimizer": "cpu"}), torch.device("cuda"))
    with pytest.raises(UsageError, match="set moments_rounding: nearest"):
        settings.check(spec, torch.device("cuda"))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_second_gradient_and_a_backward_outside_are_refused(stage: int) -> None:
    net = nn.Linear(4, 4)
    x = torch.ones(2, 4, requires_grad=True)
    engine = build_engine(net, EngineSpec(zero_stage=stage, param_persistence_threshold=0))
    with pytest.raises(UsageError, match=r"expected engine\.backward"):
        net(x).sum().backward()
    output = checkpoint(net, checkpoint(net, x, use_reentrant=True), use_reentrant=True)
    with pytest.raises(UsageError, match="one gradient a backward"):
        engine.backward(output.sum())
    engine.backward(net(x).sum())
    engine.step()
    engine.close()
