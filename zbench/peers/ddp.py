"""torch's DistributedDataParallel with the fused Adam of every rank: `engine: ddp`, stage 0."""

from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec

_MIB = 1 << 20


def wrap(
    model: nn.Module, spec: EngineSpec, process_group: dist.ProcessGroup | None
) -> DistributedDataParallel:
    """Return DDP as its guide recommends it; `reduce_bucket_size` elements of 4 bytes a bucket, else its own.

    Each rank keeps its own buffers, as with every other engine; DDP's default takes rank 0's in each step.
    """
    return DistributedDataParallel(
        model,
        process_group=process_group,
        bucket_cap_mb=spec.reduce_bucket_size and max(1, round(spec.reduce_bucket_size * 4 / _MIB)),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )


def reduce_when(module: DistributedDataParallel) -> Callable[[bool], None]:
    """Return what tells DDP, before a forward, whether its backward reduces (as `no_sync` does)."""
    return partial(setattr, module, "require_backward_grad_sync")


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> TorchEngine:
    """Return DDP and a whole fused Adam; it counts no collectives, so `instruments` measure nothing."""
    adam = TorchAdam.of(model, spec)
    module, named = wrap(model, spec, process_group), dict(model.named_parameters())
    return TorchEngine(module, named, adam.make(), spec, set_reducing=reduce_when(module))
