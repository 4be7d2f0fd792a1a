"""What the ranks of a test run: one training run with an engine."""

from typing import Any

import torch.distributed as dist

from tests.engine import models
from tests.engine.plain import Trajectory
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def train(
    group: dist.ProcessGroup, model_name: str, spec: dict[str, Any], *, steps: int = 3, backwards: int = 1
) -> Trajectory:
    """Return this rank's trajectory of a run; `backwards` a step unless the specification counts them."""
    model = models.make(model_name)
    parsed = EngineSpec(**spec)
    engine = build_engine(model, parsed, group)
    rank = dist.get_rank(group)
    backwards = parsed.gradient_accumulation_steps if parsed.accumulation_mode == "micro_steps" else backwards
    infos = []
    for step in range(steps):
        for micro in range(backwards):
            value = models.loss(model, models.batch(model_name, step, micro, rank))
            marks = parsed.accumulation_mode == "multi_backward"
            engine.backward(value, last=(micro == backwards - 1) if marks else None)
        infos.append(engine.step())
    result = Trajectory(engine.full_parameters(), engine.first_moments(), [i.grad_norm for i in infos], infos)
    assert all(p.grad is None for p in model.parameters() if p.numel())
    engine.close()
    return result
