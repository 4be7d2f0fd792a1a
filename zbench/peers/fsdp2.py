"""torch's FSDP2 (`fully_shard`) with a fused Adam over its shards: `engine: fsdp2`, stages 2 and 3."""

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from zbench.engine.assembly.build import Instruments
from zbench.engine.assembly.discovery import check_dimensions
from zbench.engine.assembly.settings import DTYPES
from zbench.engine.assembly.stages import stage_of
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.deferred import on_meta, values_in_turn
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.transport.choose import Transport
from zbench.peers.stepping import TorchAdam, TorchEngine, shard_start
from zbench.spec.engine import EngineSpec


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: Instruments | None = None,
    mixed_precision: MixedPrecisionPolicy | None = None,
) -> TorchEngine:
    """Return FSDP2, one unit for each entry of a module list (a transformer's blocks) and one for the rest.

    mixed_precision: None for what the dtypes of `spec` ask for, over float32 parameters. A key of offload
    moves parameters, gradients and moments to the host: FSDP2 has one policy for all. The values of rank 0's
    model count, or the parts that each rank made. It counts no collectives: `instruments` have the transport
    of those parts.
    """
    group = process_group or dist.group.WORLD
    assert group is not None, "FSDP2 needs torch.distributed"
    check_dimensions(model, spec.engine)
    device = next(model.parameters()).device
    parts = on_meta(model)
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            dist.broadcast(tensor.detach(), group_src=0, group=group)
    offloads = "cpu" in (spec.offload_optimizer, spec.offload_param)
    shard = partial(
        fully_shard,
        mesh=_mesh(group, device.type, spec.shard_group_size),
        mp_policy=mixed_precision or _precision(spec),
        offload_policy=CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloads else OffloadPolicy(),
        reshard_after_forward=None if stage_of(spec).parameters is ShardedParameters else False,
    )
    for unit in reversed(_blocks(model)):  # inner ones before those around them
        shard(unit)
    sharded: FSDPModule = shard(model)
    if parts:
        memory = DeviceMemory(device)
        instruments = instruments or Instruments()
        collectives = instruments.transport(group, memory, memory, None, "auto")
        with instruments.on_host() if offloads else nullcontext():
            _fill(model, parts, collectives, torch.device("cpu") if offloads else device)
    # of the sharded parameters; FSDP asks which are frozen at the first forward
    adam = TorchAdam.of(model, spec)
    named = dict(model.named_parameters())
    return TorchEngine(
        model,
        named,
        adam.make(),
        spec,
        set_reducing=sharded.set_requires_gradient_sync,
        prefix="host_" if offloads else "",
    )


@torch.no_grad()
def _fill(
    model: nn.Module, parts: dict[str, nn.Parameter], collectives: Transport, device: torch.device
) -> None:
    """Give the shards of meta parameters memory on `device`, and their values."""
    on_device = partial(torch.empty_like, device=device)
    model._apply(lambda t: on_device(t) if t.is_meta else t)  # type: ignore[no-untyped-call]
    for name, sharded in model.named_parameters():
        if name in parts and isinstance(sharded, DTensor):
            shard = sharded.to_local().reshape(-1)
            start = shard_start(sharded)
            for rows in values_in_turn(parts.pop(name), collectives):
                rows.copy_common(shard, start)
    collectives.close()


def _mesh(group: dist.ProcessGroup, device: str, shard_group_size: int | None) -> DeviceMesh:
    """Return one dimension of all ranks, or replicas of groups of consecutive ranks that share shards."""
    with _disable_current_modes():  # ranks are numbers, even where no other tensor has values
        if shard_group_size is None:
            return DeviceMesh.from_group(group, device)
        ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, shard_group_size)
        return DeviceMesh(device, ranks, mesh_dim_names=("replicas", "shards"))


def _precision(spec: EngineSpec) -> MixedPrecisionPolicy:
    """Return the policy that computes in `dtype`. FSDP2 adds gradients up in the dtype that it reduces in."""
    reduced = DTYPES[spec.communication_dtype or spec.grad_accum_dtype]
    return MixedPrecisionPolicy(param_dtype=DTYPES[spec.dtype], reduce_dtype=reduced)


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    return [child for one in lists for child in one if any(True for _ in child.parameters())]
