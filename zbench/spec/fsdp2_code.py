"""A trial as the few lines of PyTorch that shard a model with FSDP2 and make its optimizer."""

from typing import Any

from zbench.spec.trial import TrialSpec

_TEMPLATE = '''"""FSDP2 as zbench's trial {trial_id} ran it: zero_stage {stage}, {dtype}."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import {imports}

MICRO_BATCH_SIZE = {micro_batch_size}
GRADIENT_ACCUMULATION_STEPS = {accumulation}


def shard(model: nn.Module, world_size: int, device_type: str = "cuda") -> nn.Module:
    """Shard a model's blocks (the entries of its ModuleLists), then the rest."""
    mesh = init_device_mesh(device_type, {mesh})
    options = {{"mesh": mesh, "reshard_after_forward": {reshard}}}
{options}    blocks = [block for m in model.modules() if isinstance(m, nn.ModuleList) for block in m]
    for block in blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Call after `shard`: the optimizer must see the sharded parameters. Parameter groups go here."""
    return torch.optim.{kind}(model.parameters(), {settings}, fused=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, losses) -> None:
    """One optimizer step. `losses`: an iterable that runs the forward of each micro-batch as it is asked."""
    for number, loss in enumerate(losses, 1):
        model.set_requires_gradient_sync({sync})
        (loss / GRADIENT_ACCUMULATION_STEPS).backward()
{clip}    optimizer.step()
    optimizer.zero_grad()
'''


def fsdp2_code(trial: TrialSpec) -> str:
    """Return Python code that runs a trial's configuration on FSDP2."""
    engine, optimizer = trial.engine, trial.engine.optimizer
    imports, options = ["fully_shard"], ""
    reduced = engine.communication_dtype or engine.grad_accum_dtype
    if {engine.dtype, reduced} != {"float32"}:
        imports.append("MixedPrecisionPolicy")
        policy = f"MixedPrecisionPolicy(param_dtype=torch.{engine.dtype}, reduce_dtype=torch.{reduced})"
        options += f'    options["mp_policy"] = {policy}\n'
    if "cpu" in (engine.offload_optimizer, engine.offload_param):
        imports.append("CPUOffloadPolicy")
        options += '    options["offload_policy"] = CPUOffloadPolicy()\n'
    settings: dict[str, Any] = {
        "lr": optimizer.lr,
        "betas": optimizer.betas,
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "amsgrad": optimizer.amsgrad,
    }
    limit = engine.gradient_clipping
    auto = engine.reduce_at == "auto" and engine.zero_stage >= 2
    each = auto or engine.reduce_at == "each_backward"
    return _TEMPLATE.format(
        trial_id=trial.trial_id,
        stage=engine.zero_stage,
        dtype=engine.dtype,
        imports=", ".join(sorted(imports, key=str.lower)),
        micro_batch_size=trial.workload.micro_batch_size,
        accumulation=engine.gradient_accumulation_steps,
        mesh=_mesh(engine.shard_group_size),
        reshard=engine.zero_stage == 3,
        options=options,
        kind="AdamW" if optimizer.name == "adamw" else "Adam",
        settings=", ".join(f"{key}={value!r}" for key, value in settings.items()),
        sync="True" if each else "number == GRADIENT_ACCUMULATION_STEPS",
        clip=f"    nn.utils.clip_grad_norm_(model.parameters(), {limit!r})\n" if limit else "",
    ).rstrip("\n")


def _mesh(shard_group_size: int | None) -> str:
    """Return the mesh; of two dimensions `fully_shard` replicates along the first."""
    if shard_group_size is None:
        return "(world_size,)"
    names = '("replicate", "shard")'
    return f"(world_size // {shard_group_size}, {shard_group_size}), mesh_dim_names={names}"
