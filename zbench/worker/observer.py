"""Watches a run for the verdict: between the timed steps, outside every measured figure."""

import torch
import torch.distributed as dist

from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.verify.digest import digest
from zbench.verify.trajectory import Trajectory


class Observer:
    """Notes losses and gradient norms of every step and, where `bits` is set, digests of all parameters."""

    def __init__(self, engine: TrainingEngine, *, bits: bool) -> None:
        self._engine, self.bits = engine, bits
        self._losses: list[list[float]] = []
        self._infos: list[StepInfo] = []
        self._digests: list[list[int]] = []
        self._names: tuple[str, ...] = ()

    def after_step(self, losses: list[float], info: StepInfo) -> None:
        """Note one step; gathers all parameters, so every rank must call it."""
        self._losses.append(losses)
        self._infos.append(info)
        if self.bits:
            parameters = self._engine.full_parameters()
            self._names = tuple(parameters)
            self._digests.append([digest(value.float()) for value in parameters.values()])

    def trajectory(self) -> Trajectory:
        """Return what this rank saw, with the losses of all ranks. Every rank must call it."""
        mine = torch.tensor(self._losses, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        norms = [float("nan") if info.grad_norm is None else info.grad_norm for info in self._infos]
        first_moments = getattr(self._engine, "first_moments", dict)
        return Trajectory(
            names=self._names,
            losses=torch.stack(everyone, dim=1),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.tensor(self._digests, dtype=torch.int64),
            parameters={name: value.cpu().float() for name, value in self._engine.full_parameters().items()},
            moments={name: value.cpu().float() for name, value in first_moments().items()},
            skipped=tuple(step for step, info in enumerate(self._infos) if info.skipped),
        )
