"""What an overflow leaves behind; runs inside the pool's ranks."""

from typing import Any

import torch
import torch.distributed as dist

from tests.engine import models
from zbench.engine import build_engine
from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec


def overflow(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[list[StepInfo], set[str]]:
    """Take a good step and one that overflows on rank 1 alone; return both, and what the second changed."""
    model = models.make("mlp")
    engine = build_engine(model, EngineSpec.model_validate({"dtype": "float16", **spec}), group)
    infos = []
    before: dict[str, torch.Tensor] = {}
    for step in range(2):
        before = engine.state_dict()
        for micro in range(spec.get("gradient_accumulation_steps", 1)):
            loss = models.loss(model, models.batch("mlp", step, micro, dist.get_rank(group)))
            grows = step == 1 and micro == 0 and dist.get_rank(group) == 1
            engine.backward(loss * 1e30 if grows else loss)
        infos.append(engine.step())
    after = engine.state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    with torch.no_grad():  # what the model computes with must be the old weights too
        assert models.loss(model, models.batch("mlp", 0, 0, 0)).isfinite()
    for name, value in engine.full_parameters().items():
        assert torch.equal(value, before[f"param.{name}"])
    engine.close()
    return infos, changed
