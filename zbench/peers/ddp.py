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
    """Return DDP with buckets of `reduce_bucket_size` elements of 4 bytes; None: DDP's default size.

    Each rank keeps its own buffers, as with every other engine; by default DDP broadcasts those of rank 0.
    """
    return DistributedDataParallel(
        model,
        process_group=process_group,
        bucket_cap_mb=spec.reduce_bucket_size and max(1, round(spec.reduce_bucket_size * 4 / _MIB)),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )


def reduce_when(module: DistributedDataParallel) -> Callable[[bool], None]:
    """Return a function that sets, before a forward, whether DDP's backward reduces (as `no_sync` does)."""
    return partial(setattr, module, "require_backward_grad_sync")


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> TorchEngine:
    """Return DDP with an unsharded fused Adam. `instruments` is ignored: collectives are not counted."""
    adam = TorchAdam.of(model, spec)
    module = wrap(model, spec, process_group)
    named = dict(model.named_parameters())
    return TorchEngine(module, named, adam.make(), spec, set_reducing=reduce_when(module))
