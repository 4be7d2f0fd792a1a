"""A small model, its batches, and the parameters of a run that nothing disturbs."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

Values = dict[str, Tensor]
SMALL = {"reduce_bucket_size": 300, "allgather_bucket_size": 300, "param_persistence_threshold": 0}


def model() -> nn.Module:
    """Return a small model, the same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))


def batch(step: int) -> Tensor:
    """Return the inputs of a step, the same on every rank: so gradients are those of one process."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def engine_of(group: dist.ProcessGroup, net: nn.Module, spec: dict[str, Any]) -> Engine:
    """Return an engine with small buckets."""
    return build_engine(net, EngineSpec.model_validate(SMALL | spec), group)


def take_step(engine: Engine, step: int) -> None:
    """Take a step of one backward."""
    engine.backward(engine.model(batch(step)).square().mean())
    engine.step()


def same(engine: Engine, before: Values) -> bool:
    """Whether the engine's whole parameters are `before`."""
    now = engine.full_parameters()
    return all(torch.equal(now[name], value) for name, value in before.items())


def as_undisturbed(engine: Engine, group: dist.ProcessGroup, spec: dict[str, Any], steps: int) -> bool:
    """Close an engine; whether its parameters have the bits of a run of so many steps, undisturbed."""
    values = engine.full_parameters()
    engine.close()
    other = engine_of(group, model(), spec)
    for step in range(steps):
        take_step(other, step)
    alike = same(other, values)
    other.close()
    return alike
