"""Every step by its sketches: the update and the gradient of each, regressed on those of the float64 run.

The first step that differs by more than rounding explains is named: after it the run is another one. What is
too small to be seen in one step is looked for in all steps together, in the last half and the last quarter.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from zbench.verify.diagnosis import Finding, percent, where_of
from zbench.verify.distance import TINY
from zbench.verify.limits import (
    ALL_CERTAIN,
    ALONE_CERTAIN,
    ALONE_UP_TO,
    CHAOTIC_BELOW,
    DIVERGED,
    LEAST_SHARE,
    LEAST_STEPS,
    LEAST_SUMS,
    LOSS_ROUNDINGS,
    LOSSES_UP_TO,
    NEAR,
    OF_CONSTANTS,
    ONE_ROUNDING,
    OWN_CERTAIN,
    STEP_TIMES_CONSTANTS,
    TELLS_UP_TO,
    UNIT_ROUNDOFF,
    UPDATES_UP_TO,
    WRONG_FROM,
)
from zbench.verify.noise import can_be_compared
from zbench.verify.regression import Regression
from zbench.verify.replay import Adam, most_in_float32
from zbench.verify.slope import common_limit, factor_in_words
from zbench.verify.sums import CELLS
from zbench.verify.trajectory import Reference, Trajectory


@dataclass(frozen=True, slots=True)
class _Shares:
    """What a step has more than the reference's, as a share of the true one, of each of P parameters.

    more [P]: along the true one; error [P]: the standard error of it. base, base_error [P]: of the reference
    beside the float64 run. rounding [P]: what one rounding of all weights would add. usable [P] bool.
    """

    more: Tensor
    error: Tensor
    base: Tensor
    base_error: Tensor
    rounding: Tensor
    usable: Tensor

    @classmethod
    def of(cls, runs: Sequence[Tensor], active: Tensor, weights: Tensor | None = None) -> "_Shares":
        """Of trial, plain and true run, each [P, 128]. active [P] bool: which have a gradient. weights: those
        before the step, if it rounds them.
        """
        trial, plain, true = runs
        square, sums = true.square().sum(dim=1), (true != 0).sum(dim=1)

        rounding = torch.zeros_like(square)
        if weights is not None:
            rounding = UNIT_ROUNDOFF * weights.norm(dim=1) / square.sqrt()
        added, own = Regression.of(trial - plain, true), Regression.of(plain - true, true)
        usable = active & (sums >= LEAST_SUMS) & added.slope.isfinite() & (own.across < NEAR * square.sqrt())
        freedom = (sums - 1).clamp(min=1)
        fields = (added.slope, added.error(freedom), own.slope, own.error(freedom), rounding)
        return cls(*(field.masked_fill(~usable, 0.0) for field in fields), usable)  # type: ignore[call-arg]

    def beside_kinks(self, farther: float, unit: float) -> "_Shares":
        """Return the shares with the standard errors that a kink of the model makes likely.

        When an input of a ReLU crosses zero in the trial and not in the reference, the gradients of the
        layers below change in other directions than their own. The change has a low rank, so a part of it
        may lie along the gradient of any parameter. A wrong factor on one parameter changes no direction.
        So the largest error of any other parameter counts for each, if rounding does not explain it.
        farther: see `_farther`. unit: one rounding.
        """
        explained = DIVERGED * farther * self.base_error.clamp(min=unit)
        odd = self.error * (self.usable & (self.error > explained))
        largest, second = torch.cat([odd, odd.new_zeros(2)]).topk(2).values
        return replace(self, error=self.error + torch.where(odd == largest, second, largest))

    def pooled(self) -> "_Shares":
        """Return the mean over the first dimension, where most are usable, of what is known best."""
        weight = self.usable / (self.error.square() + self.base_error.square() + LEAST_SHARE**2)
        weight = weight / weight.sum(dim=0).clamp(min=TINY)
        means = {name: (weight * getattr(self, name)).sum(dim=0) for name in ("more", "base", "rounding")}
        errors = {name: (weight * getattr(self, name)).norm(dim=0) for name in ("error", "base_error")}
        return _Shares(**means, **errors, usable=self.usable.double().mean(dim=0) > 0.5)


@dataclass(slots=True)
class _Judge:
    """Judges steps in order, by one rule. A step is off by no more than the least size of a fault, what its
    regression leaves open, and what the trajectory has made of rounding so far.

    The reference shows the last: how far its own steps were off the float64 run's so far, all parameters
    together, and any one beside the others. A token or a saturated unit decides a whole gradient of low rank,
    and an error along it hits any parameter. A trial may be as many times as far off as it is farther away.

    alone, whole: the least size of a fault of one parameter, and of all. unit: one rounding. constants [P]:
    the share that rounding of Adam's constants may have of an update. first [P], grown [P]: the reference's
    own errors after the first step, and how many times as large they have become.
    """

    names: Sequence[str]
    adams: Mapping[str, Adam]
    constants: Tensor
    alone: float
    whole: float
    unit: float
    together: float = 0.0
    apart: float = 0.0
    first: Tensor | None = None
    grown: Tensor | None = None

    def faulty(self, shares: _Shares, farther: float, count: int) -> tuple[float, str] | None:
        """Return by which share a step is off, and where; None for a right one. farther: see `_farther`.

        count: of steps that are judged together; what each made of rounding cancels over them.
        """
        usable = shares.usable
        if not bool(usable.any()):
            return None
        common = shares.pooled()
        off = (shares.base - common.base).abs() - OWN_CERTAIN * shares.base_error
        apart = max(self.apart / count**0.5, float(off[usable].max()))
        alike = max(float(common.base.abs()), apart / int(usable.sum()) ** 0.5)
        together = max(self.together / count**0.5, alike)
        if count == 1:
            self.together, self.apart = together, apart
        healthy = self._grown_from(shares)
        limit = self.whole + ALL_CERTAIN * float(common.error) + float(common.rounding)
        limit += float(healthy[usable].median()) + DIVERGED * farther * together
        limits = (
            self.alone + healthy + ALONE_CERTAIN * shares.error + shares.rounding + DIVERGED * farther * apart
        )
        mean = float(common.more)
        usable = usable & (limits < TELLS_UP_TO)
        shared = min(max(mean, -limit), limit)  # a sound parameter shares all of it, or less
        apart_from_shared = shares.more - shares.more.clamp(min(shared, 0.0), max(shared, 0.0))
        bad = usable & (apart_from_shared.abs() > limits)
        if not bool(bad.any()):
            return (mean, "all parameters") if TELLS_UP_TO > limit < abs(mean) else None
        size = statistics.median(shares.more[bad].tolist())
        other = (shares.more - size).abs() > limits + NEAR * abs(size)
        faulty = {(self.names[at], 0) for at in bad.nonzero().flatten().tolist()}
        sound = {(self.names[at], 0) for at in (usable & ~bad & other).nonzero().flatten().tolist()}
        return size, where_of(faulty, sound, self.adams)

    def _grown_from(self, shares: _Shares) -> Tensor:
        """Return [P]: what the trajectory may have made so far of the rounding of Adam's constants."""
        sizes = (shares.base.square() + CELLS * shares.base_error.square()).sqrt()
        if self.first is None or self.grown is None:
            self.first = sizes.clamp(min=self.unit)
            self.grown = torch.ones_like(sizes)
        self.grown = torch.maximum(self.grown, sizes / self.first)
        return self.constants * self.grown


@dataclass(frozen=True, slots=True)
class _Step:
    """One step, or `count` together. first: from 1. farther: see `_farther`. readable: the share of its
    gradients that are usable.
    """

    first: int
    count: int
    farther: float
    update: _Shares
    gradient: _Shares
    readable: float = 1.0

    @classmethod
    def together(cls, steps: Sequence["_Step"]) -> "_Step":
        """Return several steps as one."""

        def pooled(shares: Sequence[_Shares]) -> _Shares:
            of_steps = {
                name: torch.stack([getattr(one, name) for one in shares]) for name in _Shares.__slots__
            }
            return _Shares(**of_steps).pooled()

        farther = max(step.farther for step in steps)
        both = (pooled([s.update for s in steps]), pooled([s.gradient for s in steps]))
        return cls(steps[0].first, len(steps), farther, *both)

    @property
    def when(self) -> str:
        """Which steps, in words."""
        return f"in step {self.first}" if self.count == 1 else f"from step {self.first} on"


class _Judges:
    """Those of the update and of the gradient."""

    def __init__(self, reference: Reference, adams: Mapping[str, Adam], dtype: str) -> None:
        names = reference.plain.names
        steps = len(reference.plain.digests)
        shares = [STEP_TIMES_CONSTANTS * most_in_float32(adams[name], steps) for name in names]
        constants = torch.tensor(shares, dtype=torch.float64).clamp(min=OF_CONSTANTS)
        clipping = float(reference.clipping_error)
        whole = common_limit(dtype, clipping) if clipping > 0 else ALONE_UP_TO[dtype]
        unit = ONE_ROUNDING[dtype]
        self._update = _Judge(names, adams, constants, LEAST_SHARE, UPDATES_UP_TO[dtype], unit)
        self._gradient = _Judge(names, adams, constants, ALONE_UP_TO[dtype], whole, unit)
        self._ranks_and_backwards = reference.plain.losses.shape[1:]

    def tells_after(self, step: _Step) -> bool:
        """Say whether the trajectory has made less of rounding than half a gradient."""
        return DIVERGED * step.farther * self._gradient.together < TELLS_UP_TO

    def finding(self, step: _Step) -> Finding | None:
        """Return what is wrong with a step: a lost update, its gradient, or its update."""
        update = self._update.faulty(step.update, step.farther, step.count)
        gradient = self._gradient.faulty(step.gradient, step.farther, step.count)
        if update is not None and abs(abs(update[0]) - 1) < NEAR:
            fault = "is lost" if update[0] < 0 else "is done twice"
            where = "" if update[1] == "all parameters" else f" ({update[1]})"
            return Finding(1.0, f"the update of step {step.first} {fault}{where}")
        if gradient is not None:
            words = factor_in_words(1 + gradient[0], gradient[1], *self._ranks_and_backwards)
            return Finding(abs(gradient[0]), f"{words} {step.when}")
        if update is not None:
            share = percent(update[0])
            way = "long" if update[0] > 0 else "short"
            return Finding(abs(update[0]), f"updates {share} too {way} ({update[1]}) {step.when}")
        return None


def judge_steps(
    observed: Trajectory, reference: Reference, adams: Mapping[str, Adam], dtype: str
) -> list[Finding]:
    """Return the fault of the first step that has one, of several, or of the losses.

    Steps count up to the one from which on the trajectory decides more than the training does.
    """
    if observed.skipped != reference.plain.skipped:
        return []
    plain, true = reference.plain.sketches, reference.true_sketches
    if not can_be_compared(observed.sketches, plain, true):
        return _judge_losses(observed, reference, dtype, len(observed.losses))
    judges = _Judges(reference, adams, dtype)
    steps = list[_Step]()
    most = 0.0
    horizon = len(plain)
    for step in _steps(observed, reference, adams, ONE_ROUNDING[dtype]):
        most = max(most, step.readable)
        if step.readable < CHAOTIC_BELOW * most:
            horizon = step.first - 1
            break
        if finding := judges.finding(step):
            return [finding]
        steps.append(step)
        if not judges.tells_after(step):
            horizon = step.first - 1
            break
    for count in (len(steps), len(steps) // 2, len(steps) // 4):
        if count >= LEAST_STEPS:
            together = _Step.together(steps[-count:])
            if finding := judges.finding(together):
                return [finding]
    return _judge_losses(observed, reference, dtype, horizon)


def _steps(
    observed: Trajectory, reference: Reference, adams: Mapping[str, Adam], unit: float
) -> Iterator[_Step]:
    """Yield the steps that were not skipped. unit: one rounding."""
    runs = (observed.sketches, reference.plain.sketches, reference.true_sketches)
    of_each = [adams[name] for name in reference.plain.names]
    beta1 = torch.tensor([adam.beta1 for adam in of_each], dtype=torch.float64)[:, None]
    decay = torch.tensor(  # is no gradient, but Adam takes it for one
        [0.0 if adam.decoupled else adam.weight_decay for adam in of_each], dtype=torch.float64
    )[:, None]
    shows_moments = bool((observed.sketches[:, :, 1] != 0).any())  # zeros: no rank could read any
    for step, active in enumerate(reference.active):
        if step in observed.skipped:
            continue
        before, after = ([run[at] for run in runs] for at in (step, step + 1))
        pairs = list(zip(before, after, strict=True))
        moves = [new[:, 0] - old[:, 0] for old, new in pairs]
        gradients = [(new[:, 1] - beta1 * old[:, 1]) / (1 - beta1) - decay * old[:, 0] for old, new in pairs]
        update = _Shares.of(moves, active, before[1][:, 0])
        gradient = _Shares.of(gradients, active & shows_moments)
        readable = int(gradient.usable.sum()) / max(1, int(active.sum()))
        farther = _farther(before)
        update, gradient = (shares.beside_kinks(farther, unit) for shares in (update, gradient))
        yield _Step(step + 1, 1, farther, update, gradient, readable)


def _farther(before: Sequence[Tensor]) -> float:
    """Return how many times as far a trial is from the reference, as that from the float64 run: at least 1.
    It is that of all parameters, or of the median one, since a single one may have most of the distance.
    """
    trial, plain, true = (sketches[:, 0] for sketches in before)
    apart, errors = (trial - plain).norm(dim=1), (plain - true).norm(dim=1)
    of_each: list[float] = (apart / errors)[errors > 0].tolist()
    overall = float(apart.norm() / errors.norm()) if of_each else 1.0
    return max(1.0, overall, statistics.median(of_each or [1.0]))


def _judge_losses(observed: Trajectory, reference: Reference, dtype: str, horizon: int) -> list[Finding]:
    """Return the first of `horizon` steps whose losses are further from the reference's than rounding
    explains.
    """
    ours, plain, true = observed.losses, reference.plain.losses, reference.true_losses
    if ours.shape != plain.shape or true.shape != plain.shape:
        return []
    apart, errors, size = (x.abs().flatten(1).mean(dim=1) for x in (ours - plain, plain - true, plain))
    most = torch.from_numpy(np.maximum.accumulate(errors.numpy()))
    runs = (observed.sketches, reference.plain.sketches, reference.true_sketches)
    looked = can_be_compared(*runs) and len(runs[0]) > len(apart)
    farther = [_farther([run[at] for run in runs]) if looked else 1.0 for at in range(len(apart))]
    limits = (
        LOSSES_UP_TO * most * torch.tensor(farther)
        + (LOSS_ROUNDINGS * ONE_ROUNDING[dtype] + LEAST_SHARE) * size
    )
    bad = (apart > limits)[:horizon]
    if not bool(bad.any()):
        return []
    step = int(bad.nonzero()[0])
    share = float(apart[step] / size[step])
    return [Finding(min(share, WRONG_FROM / 2), f"losses {percent(share)} off from step {step + 1} on")]
