"""torch's DDP with its ZeroRedundancyOptimizer: `engine: zero_redundancy`, stage 1."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from zbench.peers.ddp import reduce_when, wrap
from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec


class ShardedStates(TorchEngine):
    """A TorchEngine in which the moments of each parameter are on one rank only."""

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> exp_avg of every trained parameter, on every rank: an all-reduce of it and zeros."""
        states = self._optimizer_states()
        moments = {}
        for name, p in self._named.items():
            if p.requires_grad:
                moment = states[p]["exp_avg"].clone() if states.get(p) else torch.zeros_like(p)
                dist.all_reduce(moment)
                moments[name] = moment.detach()
        return moments

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        """Return the parameters that this rank updates, and their moments."""
        groups = self._optimizer.optim.param_groups  # type: ignore[attr-defined]
        own = {id(parameter) for group in groups for parameter in group["params"]}
        parts = super().optimizer_parts()
        return {key: part for key, part in parts.items() if id(self._named[key.rpartition("@")[0]]) in own}

    def _optimizer_states(self) -> Mapping[Tensor, dict[str, Any]]:
        states: Mapping[Tensor, dict[str, Any]] = self._optimizer.optim.state  # type: ignore[attr-defined]
        return states


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> ShardedStates:
    """Return DDP with a sharded fused Adam. `instruments` is ignored: collectives are not counted."""
    adam = TorchAdam.of(model, spec)
    module = wrap(model, spec, process_group)
    named = dict(model.named_parameters())
    optimizer = ZeroRedundancyOptimizer(
        adam.groups, adam.kind, process_group=process_group, parameters_as_bucket_view=True, fused=True
    )
    return ShardedStates(module, named, optimizer, spec, set_reducing=reduce_when(module))
