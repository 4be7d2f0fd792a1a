"""What the ranks of a test run: one training run with an engine."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.engine import changes, disturbances, models
from tests.engine.plain import Trajectory
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.policies import MultiBackward
from zbench.spec.engine import EngineSpec


def engine_trajectory(
    group: dist.ProcessGroup, model_name: str, spec: dict[str, Any], **how: Any
) -> Trajectory:
    """Return this rank's trajectory of a run; for `how` see `train`."""
    engine = build_engine(models.make(model_name), EngineSpec.model_validate(spec), group)
    return train(engine, model_name, dist.get_rank(group), **how)


def trajectory_with_gpu_sizes(
    group: dist.ProcessGroup, model_name: str, spec: dict[str, Any], **how: Any
) -> Trajectory:
    """Return the same with the sizes that a GPU has by default: whole blocks are gathered."""
    instruments = Instruments(device_type="cuda")
    engine = build_engine(
        models.make(model_name), EngineSpec.model_validate(spec), group, instruments=instruments
    )
    return train(engine, model_name, dist.get_rank(group), **how)


def train(
    engine: Engine,
    name: str,
    rank: int,
    *,
    steps: int,
    backwards: int,
    change: str = "nothing",
    disturb: str = "",
    late: bool = False,
    resumed: Callable[[int, Engine], Engine] = lambda step, engine: engine,
) -> Trajectory:
    """Train the model `name`, close its engine, and return its trajectory.

    `change` happens before each step (`late`: behind its backwards), to the model and the optimizer's groups;
    `disturb` names what goes wrong, or is done beside training, and must leave no trace. `resumed` returns
    the engine that takes a step.
    """
    marks = isinstance(engine.policies.accumulation, MultiBackward)
    infos = []
    for step in range(steps):
        engine = resumed(step, engine)
        if not late:
            changes.CHANGES[change](step, engine.model, engine.param_groups)
        for micro in range(backwards):
            data = models.batch(name, step, micro, rank)
            last = (micro == backwards - 1) if marks else None
            if disturb and step:
                disturbances.disturb(disturb, engine, data, first=micro == 0, last=last)
            engine.backward(models.loss(engine.model, data), last=last)
        if "evaluate" in disturb:
            disturbances.evaluate(engine, models.batch(name, step, 0, rank), None)
        if late:
            changes.CHANGES[change](step, engine.model, engine.param_groups)
        infos.append(engine.step())
    norms, skipped = [i.grad_norm for i in infos], [i.skipped for i in infos]
    state = (engine.full_parameters(), engine.first_moments())
    result = Trajectory(*({n: value.cpu() for n, value in of.items()} for of in state), norms, skipped)
    assert all(p.grad is None for p in engine.model.parameters() if p.numel())
    engine.close()
    return result


class Scattered(nn.Module):
    """Parameters that are slices of something larger, and a buffer that repeats one value."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        base = torch.arange(24.0).view(4, 6) + 100 * rank
        self.sliced = nn.Parameter(base[:, :3])
        self.beside = base[:, 5]
        self.frozen = nn.Parameter(base[:, 3:5], requires_grad=False)
        self.gain = nn.Parameter(torch.ones(3))
        self.register_buffer("repeated", torch.full((1, 1), 1.0 + rank).expand(500, 3))


def scattered(group: dist.ProcessGroup, stage: int) -> dict[str, Any]:
    """Return what a model with gaps in memory, other values on each rank, begins with."""
    model = Scattered(dist.get_rank(group))
    engine = build_engine(model, EngineSpec(zero_stage=stage), group)
    values: dict[str, Any] = {**engine.full_parameters(), "repeated": model.repeated.clone()}
    engine.close()
    return values | {"beside": model.beside}
