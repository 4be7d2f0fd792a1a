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


def same(engine: Engine, before: Values) -> bool:
    """Whether the engine's whole parameters are `before`."""
    now = engine.full_parameters()
    return all(torch.equal(now[name], value) for name, value in before.items())


def as_undisturbed(values: Values, group: dist.ProcessGroup, spec: dict[str, Any], steps: int) -> bool:
    """Whether these parameters have the bits of a run of so many steps that nothing disturbs."""
    return all(torch.equal(values[n], v) for n, v in undisturbed(group, spec, steps).items())


def undisturbed(group: dist.ProcessGroup, spec: dict[str, Any], steps: int) -> Values:
    """Return the parameters after steps that nothing disturbs."""
    net = model()
    engine = engine_of(group, net, spec)
    for step in range(steps):
        engine.backward(net(batch(step)).square().mean())
        engine.step()
    values = engine.full_parameters()
    engine.close()
    return values
