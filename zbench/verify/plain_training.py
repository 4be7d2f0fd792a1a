"""The reference: plain PyTorch in one process that plays every rank in turn, and the same run in float64.

It uses no engine code but the chunk sums of the canonical norm (`plain_numerics`). Gradients are summed in
float32, over ranks in rank order (within shard groups, then over groups) and over micro-batches in order,
whichever the trial does first. One factor then averages, unscales and clips.
"""

import copy
import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec
from zbench.spec.peers import begins_rounded
from zbench.spec.trial import Accumulation
from zbench.verify.buffers import BufferMoves
from zbench.verify.distance import relative_sizes
from zbench.verify.float64_mode import Float64Mode
from zbench.verify.limits import REPEATED_WITHIN
from zbench.verify.plain_numerics import (
    Gradients,
    GradientSums,
    LossScale,
    PlainAdam,
    RankOrder,
    canonical_square_sum,
    clipping_factor,
    group_named,
    square_sum,
    torch_dtype,
    torch_norm,
)
from zbench.verify.sums import CELLS, Run, RunSums, digest, signed_sums
from zbench.verify.trajectory import Reference, Trajectory
from zbench.workloads import Workload, seed_all, weighted


@dataclass(frozen=True, slots=True)
class PlainTask:
    """What to train: a workload under an engine's numerics, for `steps` steps, on `device`."""

    workload: Workload
    spec: EngineSpec
    accumulation: Accumulation
    steps: int
    device: torch.device


def make_reference(task: PlainTask, *, truth: bool, on_step: Callable[[int, int], None]) -> Reference:
    """Return the plain trajectory and, with `truth`, the float64 one.

    `on_step(done, total)` is called after each step of each run.
    """
    total = task.steps * (2 if truth else 1)
    plain = _PlainTraining(task)
    initial = {name: value.clone() for name, value in plain.adam.values().items()}
    trajectory = plain.run(lambda step: on_step(step, total))
    _require_repeatable(task, trajectory)
    values = plain.adam.values()
    reference = Reference(
        trajectory,
        torch.stack([(v - initial[name]).double().norm() for name, v in values.items()]),
        torch.tensor(plain.active),
        {name: list(value.shape) for name, value in values.items()},
        _flat(values),
        _flat(plain.adam.first_moments()),
        gradients=_flat(plain.gradients),
        contributions=plain.contributions(),
        buffers=plain.buffers(),
        buffer_moves=plain.buffer_moves(),
        frozen=plain.frozen,
        clipping_error=torch.tensor(plain.clipping_error, dtype=torch.float64),
    )
    if not truth:
        return reference
    true = _PlainTraining(task, skips=trajectory.skipped)
    threads = torch.get_num_threads()
    # as many as all ranks have: its last bits, which depend on them, decide nothing
    torch.set_num_threads(min(threads * task.workload.world_size, len(os.sched_getaffinity(0))))
    try:
        exact = true.run(lambda step: on_step(task.steps + step, total))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError) as error:  # an operation without a float64 form
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        warning = f"no float64 run, so only the reference's own bits are judged: {why}"
        return replace(reference, warnings=[warning])
    finally:
        torch.set_num_threads(threads)
    sizes = true.adam.gradient_sizes()
    return replace(
        reference,
        truth=_flat(true.adam.values()),
        true_moments=_flat(true.adam.first_moments()),
        moment_sizes=_moment_sizes(true.adam.first_moments(), exact.sketches),
        weights=_flat({name: relative_sizes(size) for name, size in sizes.items()}),
        true_gradients=_flat(true.gradients),
        true_buffers=true.buffers(),
        true_sketches=exact.sketches,
        true_losses=exact.losses,
    )


def _flat(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.reshape(-1) for name, value in tensors.items()}


def _moment_sizes(moments: Mapping[str, Tensor], sketches: Tensor) -> Tensor:
    """Return [P]: the largest root mean square that each first moment had after any step.

    Terms that cancel in the end, as a gradient and a decay that is added to it do, leave errors of the size
    that they had. sketches: of the float64 run.
    """
    largest = sketches[:, :, 1].norm(dim=-1).amax(dim=0).nan_to_num(0.0)
    final = torch.stack([moment.double().norm() for moment in moments.values()])
    elements = torch.tensor([max(1, moment.numel()) for moment in moments.values()])
    return torch.maximum(final, largest) / elements.sqrt()


def _require_repeatable(task: PlainTask, trajectory: Trajectory) -> None:
    """Run the first step again; UsageError where it is another one, or where forward writes weights.

    Ranks share weights here, so each would write.
    """
    again = _PlainTraining(task)
    before = again.digests()
    losses, norm = again.first_step()
    written = [name for name, value in again.digests().items() if value != before[name]]
    if written:
        raise UsageError(
            f"workload.model: its forward writes {written[0]} ({len(written)} in all), which its reference"
            " cannot follow: make what forward writes a buffer (register_buffer), or set verify.mode: off"
        )
    rounding = 0.0 if task.device.type == "cpu" else REPEATED_WITHIN[task.spec.dtype]
    require_same("loss", trajectory.losses[0], torch.tensor(losses, dtype=torch.float64), rounding)
    require_same("gradient norm", trajectory.grad_norms[0], torch.tensor(norm, dtype=torch.float64), rounding)


def require_same(quantity: str, first: Tensor, second: Tensor, rounding: float) -> None:
    """Raise UsageError, with the remedy, unless all values of both runs are the same; two NaNs are.

    A CPU adds in one order, so every bit counts; another device may not: `rounding` is the relative
    difference that is allowed for.
    """
    other = ~torch.isclose(first, second, rtol=rounding, atol=0.0, equal_nan=True)
    if bool(other.any()):
        values = f"{quantity} {first[other][0]:.6g} and {second[other][0]:.6g}"
        raise UsageError(
            f"workload: two runs of the first step from the same seed differ ({values}), so nothing can be"
            " verified. Let the model and its data draw from the global generators of torch, random and"
            " numpy.random, which are seeded, or set verify.mode: off"
        )


class _PlainTraining:
    """One run. With `skips` it is the float64 run, which leaves out the steps that the plain run skipped."""

    def __init__(self, task: PlainTask, skips: tuple[int, ...] | None = None) -> None:
        self._task, self._skips = task, skips
        self._exact = skips is not None
        model = task.workload.make_model()
        if begins_rounded(task.spec):
            for tensor in model.parameters():
                tensor.data = tensor.data.to(torch_dtype(task.spec.dtype)).to(tensor.dtype)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad and not _frozen(n, task.spec)}
        self.adam = PlainAdam(trained, task.spec, torch.float64 if self._exact else torch.float32)
        others = {name: value for name, value in model.named_parameters() if name not in trained}
        digests = {name: [digest(value.detach().float())] for name, value in others.items()}
        first = self._cast(model)
        self.frozen = {n: torch.tensor([*digests[n], digest(others[n].detach().float())]) for n in others}
        self.gradients: dict[str, Tensor] = {}
        self.active: list[list[bool]] = []
        self._sketches: dict[str, Tensor] = {}
        self._factor = 1.0
        self.clipping_error = 0.0
        self._parameters = {n: p for n, p in first.named_parameters() if n in trained}
        runs = [Run.whole(name, value.shape) for name, value in self.adam.values().items()]
        self._sums = RunSums(runs, torch.device("cpu"))
        for name, parameter in first.named_parameters():
            parameter.requires_grad_(name in trained)
        self._models = [first, *(self._for_another_rank(first) for _ in range(1, task.workload.world_size))]
        self._moves = [BufferMoves() for _ in self._models]
        self._scaling = LossScale(task.spec, exact=self._exact)
        decides = task.spec.gradient_clipping or task.spec.dtype == "float16"
        self._norm = canonical_square_sum if decides and not self._exact else square_sum

    def _cast(self, model: nn.Module) -> nn.Module:
        spec = self._task.spec
        dtype = torch.float64 if self._exact else torch_dtype(spec.dtype)
        buffers = dtype if self._exact else torch_dtype(spec.buffer_dtype or spec.dtype)
        return cast_module(model, dtype, buffers).to(self._task.device)

    def _for_another_rank(self, first: nn.Module) -> nn.Module:
        """Return a model that shares the parameters, but no buffers and nothing that forward counts."""
        try:
            return copy.deepcopy(first, {id(parameter): parameter for parameter in first.parameters()})
        except (TypeError, RuntimeError):  # it holds what cannot be copied: a computed weight, a lock
            other = self._cast(self._task.workload.make_model())
            for name, parameter in first.named_parameters(remove_duplicate=False):
                owner, _, attribute = name.rpartition(".")
                setattr(other.get_submodule(owner), attribute, parameter)
            return other

    def run(self, on_step: Callable[[int], None]) -> Trajectory:
        """Train for all steps; return what was seen, with final values of the run's own dtype."""
        losses, norms, digests, skipped, seen = [], [], [], [], [self.sketches()]
        self._note_buffers()
        for step in range(self._task.steps):
            gradients, step_losses = self._gradients(step)
            self.active.append([gradient is not None for gradient in gradients.values()])
            norm, updated = self._update(step, gradients)
            if updated and not self.gradients:
                self.gradients = self.adam.first_gradients()
            losses.append(step_losses)
            norms.append(norm)
            skipped += [] if updated else [step]
            if not self._exact:
                digests.append(self._sums.digests(list(_flat(self.adam.values()).values())).tolist())
            seen.append(self.sketches())
            self._note_buffers()
            on_step(step + 1)
        return Trajectory(
            names=tuple(self._parameters),
            losses=torch.tensor(losses, dtype=torch.float64),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.tensor(digests, dtype=torch.int64),
            skipped=tuple(skipped),
            sketches=torch.stack(seen),
        )

    def sketches(self) -> Tensor:
        """Return [P, 2, 128]: the signed sums of the weights and first moments."""
        both = (_flat(self.adam.values()), _flat(self.adam.first_moments()))
        sums = self._sums.signed_sums(*([values[name] for name in self._parameters] for values in both))
        return torch.from_numpy(sums.transpose(1, 0, 2))

    def digests(self) -> dict[str, int]:
        """Return the digest of every parameter as the model holds it, frozen ones too."""
        named = self._models[0].named_parameters()
        return {name: digest(value.detach().float()) for name, value in named if value.is_floating_point()}

    def first_step(self) -> tuple[list[list[float]], float]:
        """Return the losses [rank][micro] and the averaged gradient's norm of the first step; update
        nothing."""
        gradients, losses = self._gradients(0)
        return losses, self._averaged_norm(self._norm(gradients))

    def _gradients(self, step: int) -> tuple[Gradients, list[list[float]]]:
        """Return the sums over ranks and micro-batches, and the losses [rank][micro]."""
        ranks, micros = range(self._task.workload.world_size), range(self._task.accumulation.backwards)
        losses = [[0.0 for _ in micros] for _ in ranks]
        sums = GradientSums(self._task.spec, ranks=len(ranks), several=len(micros) > 1, exact=self._exact)
        total: Gradients = {}
        weights = self._task.workload.loss_weights(step, len(micros))
        if self._task.accumulation.each_backward:
            for micro in micros:
                over_ranks = RankOrder(sums, self._group_size)
                for rank in ranks:
                    gradients, losses[rank][micro] = self._backward(step, micro, rank, weights[rank][micro])
                    over_ranks.add(gradients)
                sums.add_micro_batch(total, over_ranks.total)
        else:
            over_ranks = RankOrder(sums, self._group_size)
            for rank in ranks:
                local: Gradients = {}
                for micro in micros:
                    gradients, losses[rank][micro] = self._backward(step, micro, rank, weights[rank][micro])
                    sums.add_micro_batch(local, gradients)
                over_ranks.add(local)
            total = over_ranks.total
        return total, losses

    @property
    def _group_size(self) -> int:
        return self._task.spec.shard_group_size or self._task.workload.world_size

    def _backward(self, step: int, micro: int, rank: int, weight: float) -> tuple[Gradients, float]:
        """Return one micro-batch's gradients, of the (scaled) loss, and its unscaled loss."""
        workload = self._task.workload
        batch = tuple(x.to(self._task.device) for x in workload.batch(step, micro, rank))
        seed_all(workload.micro_seed(step, micro, rank), self._task.device)
        with Float64Mode(torch_dtype(self._task.spec.dtype)) if self._exact else nullcontext():
            loss = workload.loss(self._models[rank], batch)
        mean = weighted(loss, weight, self._task.accumulation.loss_divisor)
        torch.autograd.backward(mean if self._scaling.scale == 1.0 else mean * self._scaling.scale)
        gradients = {name: parameter.grad for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad = None
        if not self.gradients and not self._exact:
            self._take_sketches(micro, rank, gradients)
        return {n: None if g is None else g.cpu() for n, g in gradients.items()}, float(loss.detach())

    def _take_sketches(self, micro: int, rank: int, gradients: Gradients) -> None:
        ranks, backwards = self._task.workload.world_size, self._task.accumulation.backwards
        if ranks * backwards > CELLS // 2:
            return
        for name, gradient in gradients.items():
            if gradient is not None:
                empty = torch.zeros(ranks, backwards, CELLS, dtype=torch.float64)
                self._sketches.setdefault(name, empty)[rank, micro] = torch.from_numpy(
                    signed_sums(gradient.cpu())
                )

    def contributions(self) -> dict[str, Tensor]:
        """Return signed sums [W, B, 128] of what each backward added to the first step's gradient."""
        return {
            name: parts * self._factor for name, parts in self._sketches.items() if name in self.gradients
        }

    def buffers(self) -> dict[str, Tensor]:
        """Return every rank's buffers by `RANK/NAME`, as copies in CPU memory."""
        return {
            f"{rank}/{name}": buffer.detach().cpu().clone()
            for rank, model in enumerate(self._models)
            for name, buffer in model.named_buffers()
        }

    def buffer_moves(self) -> dict[str, Tensor]:
        """Return how far every rank's buffers changed in each step (`BufferMoves.table`)."""
        tables = (moves.table(rank) for rank, moves in enumerate(self._moves))
        return {key: moves for table in tables for key, moves in table.items()}

    def _note_buffers(self) -> None:
        if not self._exact:
            for moves, model in zip(self._moves, self._models, strict=True):
                moves.note(model)

    def _update(self, step: int, gradients: Gradients) -> tuple[float, bool]:
        """Clip, scale and apply the step's gradients; return their averaged norm and whether they were
        applied."""
        squares = self._norm(gradients)
        norm = self._averaged_norm(squares)
        summed = self._summed
        take = step not in self._skips if self._skips is not None else self._scaling.accepts(squares)
        if take:
            most = self._task.spec.gradient_clipping
            factor = clipping_factor(norm, most) / summed
            if not self._exact and 0 < most < norm:
                error = abs(torch_norm(gradients) / math.sqrt(squares) - 1)
                self.clipping_error = max(self.clipping_error, error)
            self._factor = self._factor if self.gradients else factor
            self.adam.step(gradients, factor)
            with torch.no_grad():
                for name, value in self.adam.values().items():
                    self._parameters[name].copy_(value)
        return norm, take

    @property
    def _summed(self) -> float:
        """By what the sum over ranks and micro-batches is divided: their number, and the loss scale."""
        ranks = self._task.workload.world_size
        return ranks * self._task.accumulation.averaged_over * self._scaling.scale

    def _averaged_norm(self, squares: float) -> float:
        return math.sqrt(squares) * (1 / self._summed)  # one factor, rounded once, as the contract says


def _frozen(name: str, spec: EngineSpec) -> bool:
    group = group_named(name, spec.param_groups)[1]
    return group is not None and group.frozen


def cast_module(model: nn.Module, dtype: torch.dtype, buffers: torch.dtype) -> nn.Module:
    """Cast float32 parameters to `dtype` and float32 buffers to `buffers`; to float64, all floating ones."""
    parameters = [(p, dtype) for p in model.parameters()]
    for tensor, to in [*parameters, *((buffer, buffers) for buffer in model.buffers())]:
        if tensor.dtype == torch.float32 or (to == torch.float64 and tensor.is_floating_point()):
            tensor.data = tensor.data.to(to)
    return model
