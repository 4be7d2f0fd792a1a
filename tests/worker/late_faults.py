"""Engines that go wrong late: `engine: tests.worker.late_faults:lost_5` loses the update of step 5."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tests.worker.engines import OtherOrder
from tests.worker.wrong_engines import Engine, with_adam
from zbench.engine.adam import AdamTask
from zbench.engine.protocols import StepInfo


def _scaled(step: int, more: float, task: AdamTask, old: Tensor, call: int) -> None:
    """Add a share of the update to what one step wrote."""
    if task.step == step:
        task.slot.param.add_(task.slot.param - old, alpha=more)


class _LateGradients(Engine):
    """Gradients of all parameters are this much larger from a step on."""

    first, more = 1, 0.0

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        self.inner.backward(loss * (1 + self.more * (self.count + 1 >= self.first)), last)


class SkipsAStep(OtherOrder):
    """Its fifth step leaves weights, moments and torch's count of steps as they were."""

    taken = 0

    def step(self) -> StepInfo:
        self.taken += 1
        if self.taken != 5:
            return super().step()
        for parameter in self._model.parameters():
            parameter.grad = None
        return StepInfo(None)

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        states = self._adam.state
        return {
            f"{name}@0": {"param": master.reshape(-1)}
            | {kind: states[master][kind].reshape(-1) for kind in ("exp_avg", "exp_avg_sq") if states[master]}
            for name, master in self._masters.items()
        }


class _StaleCopies(OtherOrder):
    """Some weights that the model computes with are not renewed, on some ranks, from a step on."""

    names = ("norm",)
    ranks = (0, 1)
    first = 1
    taken = 0

    def step(self) -> StepInfo:
        old = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        info = super().step()
        self.taken = self.taken + 1
        for name, parameter in self._model.named_parameters():
            stale = any(part in name for part in self.names) and self.taken >= self.first
            if stale and dist.get_rank() in self.ranks:
                parameter.data.copy_(old[name])
        return info


class StaleNorms(_StaleCopies):
    """All norms, on all ranks."""


class StaleBias(_StaleCopies):
    """One bias on rank 1."""

    names, ranks = ("blocks.1.mlp_norm.bias",), (1,)


class LastUpdateNeverArrives(_StaleCopies):
    """The model keeps the weights of the last update but one."""

    names = ("",)
    first = 5


def __getattr__(name: str) -> Callable[..., Any]:
    kind, _, number = name.partition("_")
    more = {"lost": -1.0, "twice": 1.0, "longer": 0.1}.get(kind)
    if more is not None:
        return with_adam(partial(_scaled, int(number), more))
    if kind == "gradients":
        return type(name, (_LateGradients,), {"first": int(number), "more": 0.05})
    raise AttributeError(name)
