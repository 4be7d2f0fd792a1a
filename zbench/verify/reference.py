"""The reference: plain PyTorch in one process that plays every rank in turn, and the same run in float64.

It takes from the engine only the canonical norm and the few scalar rules that both sides must share (clipping
coefficient, averaging factor, loss scale). Gradients are summed in float32: over ranks in rank order and over
micro-batches in order, whichever the trial does first; one factor then averages, unscales and clips.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbench.engine.adam import NORM_CHUNK, ReferenceAdam
from zbench.engine.gradients.norm import sum_in_order
from zbench.engine.policies import DynamicScaling, LossScaling, NoScaling, clip_coefficient, gradient_scale
from zbench.spec.accumulation import Accumulation
from zbench.spec.engine import EngineSpec
from zbench.verify.digest import digest
from zbench.verify.plain_adam import PlainAdam, group_of
from zbench.verify.trajectory import Reference, Trajectory
from zbench.workloads import Workload

Gradients = dict[str, Tensor | None]


@dataclass(frozen=True, slots=True)
class Task:
    """What to train: a workload under an engine's numerics, for `steps` steps, on `device`."""

    workload: Workload
    spec: EngineSpec
    accumulation: Accumulation
    steps: int
    device: torch.device


def make_reference(task: Task, *, truth: bool, on_step: Callable[[int, int], None]) -> Reference:
    """Return the plain trajectory and, with `truth`, the float64 one.

    `on_step(done, total)` is called after each step of each run.
    """
    total = task.steps * (2 if truth else 1)
    plain = _PlainRun(task)
    initial = {name: value.clone() for name, value in plain.values().items()}
    trajectory = plain.run(lambda step: on_step(step, total))
    moved = [(value - initial[name]).double().norm() for name, value in plain.values().items()]
    exact: Mapping[str, Tensor] = {}
    exact_moments: Mapping[str, Tensor] = {}
    if truth:
        true = _PlainRun(task, skips=trajectory.skipped)
        true.run(lambda step: on_step(task.steps + step, total))
        exact, exact_moments = true.values(), true.first_moments()
    return Reference(trajectory, torch.stack(moved), task.workload.data.fingerprint, exact, exact_moments)


class _PlainRun:
    """One run. With `skips` it is the float64 run, which leaves out the steps that the plain one had to
    skip."""

    def __init__(self, task: Task, skips: tuple[int, ...] | None = None) -> None:
        self._task, self._skips = task, skips
        self._exact = skips is not None
        model = task.workload.make_model()
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad and not _frozen(n, task.spec)}
        self._adam = PlainAdam(trained, task.spec, torch.float64 if self._exact else torch.float32)
        self._model = _cast(model, torch.float64 if self._exact else _dtype(task.spec.dtype)).to(task.device)
        self._parameters = {n: p for n, p in self._model.named_parameters() if n in trained}
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(name in trained)
        self._scaling = _scaling(task.spec, exact=self._exact)
        decides = task.spec.gradient_clipping > 0 or task.spec.dtype == "float16"
        self._norm = _canonical_square_sum if decides and not self._exact else _square_sum

    def values(self) -> dict[str, Tensor]:
        return self._adam.values()

    def first_moments(self) -> dict[str, Tensor]:
        return self._adam.first_moments()

    def run(self, on_step: Callable[[int], None]) -> Trajectory:
        """Train for all steps; return what was seen, with final values of the run's own dtype."""
        losses, norms, digests, skipped = [], [], [], []
        for step in range(self._task.steps):
            gradients, step_losses = self._gradients(step)
            norm, updated = self._update(step, gradients)
            losses.append(step_losses)
            norms.append(norm)
            skipped += [] if updated else [step]
            if not self._exact:
                digests.append([digest(value) for value in self.values().values()])
            on_step(step + 1)
        return Trajectory(
            names=tuple(self._parameters),
            losses=torch.tensor(losses, dtype=torch.float64),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.tensor(digests, dtype=torch.int64),
            parameters=self.values(),
            moments=self.first_moments(),
            skipped=tuple(skipped),
        )

    def _gradients(self, step: int) -> tuple[Gradients, list[list[float]]]:
        """Return the sums over ranks and micro-batches, and the losses [rank][micro]."""
        ranks, micros = range(self._task.workload.world_size), range(self._task.accumulation.backwards)
        losses = [[0.0 for _ in micros] for _ in ranks]
        sums = _Sums(self._task.spec, ranks=len(ranks), several=len(micros) > 1, exact=self._exact)
        total: Gradients = {}
        if self._task.accumulation.each_backward:
            for micro in micros:
                over_ranks: Gradients = {}
                for rank in ranks:
                    found, losses[rank][micro] = self._backward(step, micro, rank)
                    sums.add_rank(over_ranks, found)
                sums.add_micro_batch(total, over_ranks)
        else:
            for rank in ranks:
                local: Gradients = {}
                for micro in micros:
                    found, losses[rank][micro] = self._backward(step, micro, rank)
                    sums.add_micro_batch(local, found)
                sums.add_rank(total, local)
        return total, losses

    def _backward(self, step: int, micro: int, rank: int) -> tuple[Gradients, float]:
        """Return one micro-batch's gradients, of the (scaled) loss, and its unscaled loss."""
        workload = self._task.workload
        batch = tuple(x.to(self._task.device) for x in workload.batch(step, micro, rank))
        torch.manual_seed(workload.micro_seed(step, micro, rank))
        loss = workload.loss(self._model, batch)
        scaled = scaled_loss(loss, self._task.accumulation.loss_divisor, self._scaling.scale)
        torch.autograd.backward(scaled)
        gradients = {name: parameter.grad for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad = None
        return {n: None if g is None else g.cpu() for n, g in gradients.items()}, float(loss.detach())

    def _update(self, step: int, gradients: Gradients) -> tuple[float, bool]:
        """Clip, scale and apply the step's gradients; return their averaged norm and whether they were
        applied."""
        scale = self._scaling.scale
        workers, micros = self._task.workload.world_size, self._task.accumulation.averaged_over
        mean = gradient_scale(world_size=workers, accumulation=micros, loss_scale=scale, clip=1.0)
        square_sum = self._norm(gradients)
        norm = math.sqrt(square_sum) * mean
        take = step not in self._skips if self._skips is not None else self._scaling.judge(square_sum)
        if take:
            limit = self._task.spec.gradient_clipping
            clip = clip_coefficient(norm, limit) if limit else 1.0
            factor = gradient_scale(world_size=workers, accumulation=micros, loss_scale=scale, clip=clip)
            self._adam.step(gradients, factor)
            with torch.no_grad():
                for name, value in self._adam.values().items():
                    self._parameters[name].copy_(value)
        return norm, take


class _Sums:
    """Adds gradients, in place, as the contract says: in float32, kept in `grad_accum_dtype` between
    micro-batches."""

    def __init__(self, spec: EngineSpec, *, ranks: int, several: bool, exact: bool) -> None:
        wide = torch.float64 if exact else torch.float32
        self._wide = wide
        self._kept = _dtype(spec.grad_accum_dtype) if several and not exact else wide
        sent = spec.communication_dtype if ranks > 1 and not exact else None
        self._sent = _dtype(sent) if sent else None

    def add_micro_batch(self, total: Gradients, found: Gradients) -> None:
        for name, gradient in found.items():
            before = total.get(name)
            if gradient is None:
                total[name] = before
            elif before is None:
                total[name] = gradient.to(self._kept)
            else:
                total[name] = (before.to(self._wide) + gradient.to(self._wide)).to(self._kept)

    def add_rank(self, total: Gradients, found: Gradients) -> None:
        for name, gradient in found.items():
            before = total.get(name)
            if gradient is None:
                total[name] = before
                continue
            sent = (gradient if self._sent is None else gradient.to(self._sent)).to(self._wide)
            total[name] = sent if before is None else before + sent


def scaled_loss(loss: Tensor, divisor: int, scale: float) -> Tensor:
    """Return what backward starts from: the loss over `divisor` (the caller's mean), times the loss scale."""
    mean = loss if divisor == 1 else loss / divisor
    return mean if scale == 1.0 else mean * scale


def _canonical_square_sum(gradients: Gradients) -> float:
    """Return the canonical float64 sum of squares, parameters in registration order."""
    parts = []
    for gradient in gradients.values():
        if gradient is not None and gradient.numel():
            part = torch.empty(-(-gradient.numel() // NORM_CHUNK), dtype=torch.float64)
            ReferenceAdam().chunk_square_sums([gradient.reshape(-1)], [part])
            parts.append(part)
    return sum_in_order(torch.cat(parts)) if parts else 0.0


def _square_sum(gradients: Gradients) -> float:
    """Return the sum of squares in float64 and torch's own order: for the truth, or where no bit hangs on
    it."""
    found = [g for g in gradients.values() if g is not None]
    return math.fsum(float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2 for g in found)


def _scaling(spec: EngineSpec, *, exact: bool) -> LossScaling:
    if exact or spec.dtype != "float16":
        return NoScaling()
    return DynamicScaling(spec.initial_loss_scale, spec.loss_scale_window)


def _frozen(name: str, spec: EngineSpec) -> bool:
    _, group = group_of(name, spec.param_groups)
    return group is not None and group.frozen


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast float32 parameters and buffers to `dtype`; to float64, every floating one."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dtype == torch.float32 or (dtype == torch.float64 and tensor.is_floating_point()):
            tensor.data = tensor.data.to(dtype)
    return model
