"""Watches a trial for the verdict: between the timed steps, outside every measured figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.record.inputs import changed
from zbench.record.record import Correctness
from zbench.verify.digest import digest
from zbench.verify.trajectory import Trajectory, load_reference
from zbench.verify.verdict import Judgement, judge, worse

T = TypeVar("T")


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
        own = torch.tensor(self._losses, dtype=torch.float64)
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, own)
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

    def verdict(self, path: str | None, inputs: Mapping[str, str]) -> Judgement:
        """Judge what was noted by the reference at `path`. Every rank must call it.

        inputs: digests of the user's files that this trial read. Where ranks hold different parameters, the
        gravest verdict over ranks counts.
        """
        if not self.bits or path is None:
            return Judgement(Correctness("unchecked"))
        own = self.trajectory()
        first = _first_disagreement(own)
        judgement = Judgement(Correctness("unchecked"))
        if dist.get_rank() == 0 or first is not None:
            reference = load_reference(Path(path))
            if names := changed(reference.inputs, inputs):
                warning = f"{', '.join(names)} changed after the reference was computed; start a new run"
                judgement = Judgement(Correctness("unchecked"), [warning])
            else:
                judgement = judge(own, reference)
        if first is None:
            return judgement
        judgement = worse(from_all(judgement))
        warning = f"ranks hold different parameters since step {first}; the verdict is the gravest over ranks"
        return Judgement(judgement.correctness, [*judgement.warnings, warning])


def _first_disagreement(own: Trajectory) -> int | None:
    """Return the first step (from 1) after which some rank's parameters differ from rank 0's, the same on
    all."""
    everyone = [torch.empty_like(own.digests) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own.digests)
    differs = (torch.stack(everyone) != everyone[0]).any(dim=2).any(dim=0)
    return int(differs.nonzero()[0]) + 1 if bool(differs.any()) else None


def from_all(value: T) -> list[T]:
    """Return every rank's value, in rank order."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return [one for one in everyone if one is not None]
