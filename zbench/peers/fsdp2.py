"""torch's FSDP2 (`fully_shard`) with a fused Adam over its shards: `engine: fsdp2`, stage 3."""

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
    mixed_precision: MixedPrecisionPolicy | None = None,
) -> TorchEngine:
    """Return FSDP2, one unit for each entry of a module list (a transformer's blocks) and one for the rest.

    mixed_precision: None computes in the parameters' own dtype, all that `zbench sweep` asks of it. The
    values of rank 0's model count. It counts no collectives, so `instruments` measure nothing.
    """
    group = process_group or dist.group.WORLD
    assert group is not None, "FSDP2 needs torch.distributed"
    device = next(model.parameters()).device.type
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), group_src=0, group=group)
    policy = mixed_precision or MixedPrecisionPolicy()
    mesh = DeviceMesh.from_group(group, device)
    for unit in _blocks(model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    sharded: FSDPModule = fully_shard(model, mesh=mesh, mp_policy=policy)
    # of the sharded parameters; FSDP asks which are frozen at the first forward
    adam = TorchAdam.of(model, spec)
    named = dict(model.named_parameters())
    return TorchEngine(model, named, adam.make(), spec, set_reducing=sharded.set_requires_gradient_sync)


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    return [child for one in lists for child in one if any(True for _ in child.parameters())]
