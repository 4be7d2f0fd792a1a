"""What the ranks of a test run: one training run with an engine."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.engine import changes, disturbances, models
from tests.engine.plain import Trajectory
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def engine_trajectory(
    group: dist.ProcessGroup,
    model_name: str,
    spec: dict[str, Any],
    *,
    steps: int = 3,
    backwards: int = 1,
    change: str = "nothing",
    disturb: str = "",
) -> Trajectory:
    """Return this rank's trajectory of a run; `backwards` a step unless the specification counts them.

    `change` happens before each step, to the model and the optimizer's groups; `disturb` names what goes
    wrong, or is done beside training, and must leave no trace.
    """
    model = models.make(model_name)
    parsed = EngineSpec.model_validate(spec)
    engine = build_engine(model, parsed, group)
    rank = dist.get_rank(group)
    backwards = parsed.gradient_accumulation_steps if parsed.accumulation_mode == "micro_steps" else backwards
    marks = parsed.accumulation_mode == "multi_backward"
    infos = []
    for step in range(steps):
        changes.CHANGES[change](step, model, engine.param_groups)
        for micro in range(backwards):
            data = models.batch(model_name, step, micro, rank)
            last = (micro == backwards - 1) if marks else None
            if disturb and step:
                disturbances.disturb(disturb, engine, data, first=micro == 0, last=last)
            engine.backward(models.loss(model, data), last=last)
        infos.append(engine.step())
    result = Trajectory(
        engine.full_parameters(),
        engine.first_moments(),
        [i.grad_norm for i in infos],
        [i.skipped for i in infos],
    )
    assert all(p.grad is None for p in model.parameters() if p.numel())
    engine.close()
    return result


class Scattered(nn.Module):
    """Parameters that are slices of something larger, and a buffer that repeats one value."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.base = torch.arange(24.0).view(4, 6) + 100 * rank
        self.sliced = nn.Parameter(self.base[:, :3])
        self.frozen = nn.Parameter(self.base[:, 3:5], requires_grad=False)
        self.gain = nn.Parameter(torch.ones(3))
        self.register_buffer("repeated", torch.full((1, 1), 1.0 + rank).expand(500, 3))


def scattered(group: dist.ProcessGroup, stage: int) -> dict[str, Any]:
    """Return what a model with gaps in memory, other values on each rank, begins with."""
    model = Scattered(dist.get_rank(group))
    engine = build_engine(model, EngineSpec(zero_stage=stage), group)
    values: dict[str, Any] = {**engine.full_parameters(), "repeated": model.repeated.clone()}
    engine.close()
    return values | {"beside": model.base[:, 5]}
