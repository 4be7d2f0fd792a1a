"""torch's engines as its users write them where zbench's peers have no such form: bfloat16, and compiled.

In bfloat16 DDP's model is bfloat16 and Adam updates float32 copies, its masters; FSDP2 has a policy for it:
its shards are float32, and what it gathers and computes with is bfloat16.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from zbench.engine.protocols import StepInfo
from zbench.peers import ddp, fsdp2
from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec


class WithMasters(TorchEngine):
    """Adam and clipping work on float32 copies of the trained parameters, made before the model is cast."""

    def __init__(
        self,
        model: nn.Module,
        wrap: Callable[[nn.Module], nn.Module],
        spec: EngineSpec,
        set_reducing: Callable[[nn.Module], Callable[[bool], None]],
    ) -> None:
        """wrap: what makes the wrapper of the cast model; set_reducing: of the wrapper, as in TorchEngine."""
        adam = TorchAdam.of(model, spec)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        masters = {name: nn.Parameter(p.detach().clone()) for name, p in trained.items()}
        of = {p: masters[name] for name, p in trained.items()}
        groups: list[dict[str, Any]] = [
            {**group, "params": [of[p] for p in group["params"]]} for group in adam.groups
        ]
        module = wrap(model.to(torch.bfloat16))
        optimizer = adam.kind(groups, fused=True)  # type: ignore[call-arg]
        super().__init__(module, masters, optimizer, spec, set_reducing=set_reducing(module))
        self._trained: list[Tensor] = list(trained.values())
        self._masters: list[Tensor] = list(masters.values())

    def step(self) -> StepInfo:
        """Clip and update the masters, and round them into the model."""
        for parameter, master in zip(self._trained, self._masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        info = super().step()
        with torch.no_grad():
            torch._foreach_copy_(self._trained, self._masters)
        return info


def ddp_bfloat16(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> TorchEngine:
    """Return DDP of a bfloat16 model; gradients are reduced in bfloat16."""

    def wrap(cast_model: nn.Module) -> nn.Module:
        return ddp.wrap(cast_model, spec, process_group)

    return WithMasters(model, wrap, spec, cast(Any, ddp.reduce_when))


def fsdp2_bfloat16(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> TorchEngine:
    """Return FSDP2 that gathers and reduces in bfloat16."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return fsdp2.build_engine(model, spec, process_group, mixed_precision=policy)


def ddp_inductor(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> TorchEngine:
    """Return compiled DDP: the compiler sees the wrapper, and splits its graph at buckets."""
    engine = ddp.build_engine(model, spec, process_group)
    engine.module = cast(nn.Module, torch.compile(engine.module, backend="inductor"))
    return engine
