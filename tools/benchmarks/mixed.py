"""torch's engines in bfloat16 with float32 master weights, written as a user of torch alone would.

DDP and compute alone keep masters by a plain wrapper: the model is bfloat16, gradients are reduced
in bfloat16, Adam updates float32 copies. FSDP2 has a policy for it: parameters are gathered and gradients
reduced in bfloat16, its shards are float32. ZeroRedundancyOptimizer has neither.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from zbench.engine.protocols import StepInfo
from zbench.peers import ddp, fsdp2
from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec


class WithMasters(TorchEngine):
    """Adam and clipping work on float32 copies of the trained parameters."""

    def __init__(
        self, model: nn.Module, module: nn.Module, spec: EngineSpec, set_reducing: Callable[[bool], None]
    ) -> None:
        """module: the bfloat16 model, wrapped or not; `model` is what it wraps."""
        adam = TorchAdam.of(model, spec)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        masters = {name: nn.Parameter(p.detach().float()) for name, p in trained.items()}
        of = {p: masters[name] for name, p in trained.items()}
        groups: list[dict[str, Any]] = [
            {**group, "params": [of[p] for p in group["params"]]} for group in adam.groups
        ]
        optimizer = adam.kind(groups, fused=True)  # type: ignore[call-arg]
        super().__init__(module, masters, optimizer, spec, set_reducing=set_reducing)
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


def never(reducing: bool) -> None:
    """Do nothing: one process has no other rank to reduce with."""


def _alone(model: nn.Module, spec: EngineSpec) -> TorchEngine:
    model.to(torch.bfloat16)
    return WithMasters(model, model, spec, never)


def _ddp(model: nn.Module, spec: EngineSpec) -> TorchEngine:
    module = ddp.wrap(model.to(torch.bfloat16), spec, None)
    return WithMasters(model, module, spec, ddp.reduce_when(module))


def _fsdp2(model: nn.Module, spec: EngineSpec) -> TorchEngine:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return fsdp2.build_engine(model, spec, mixed_precision=policy)


BUILDERS: Mapping[str, Callable[[nn.Module, EngineSpec], TorchEngine]] = {
    "alone": _alone,
    "ddp": _ddp,
    "fsdp2": _fsdp2,
}
