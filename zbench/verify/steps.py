"""Every step by its sketches: the update and the gradient of each, regressed on those of the float64 run.

The first step that differs by more than rounding explains is named: after it the run is another one. Rounding
errors of the 64 sums are incoherent, so what is off their slope says how far to trust it. What the reference
itself is off in a step, or in one before, is no fault of an engine's.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbench.verify.diagnosis import NEAR, WRONG_FROM, Finding, percent, where_of
from zbench.verify.distance import LEAST_SHARE, UNIT_ROUNDOFF
from zbench.verify.replay import Adam
from zbench.verify.slope import ALL_UP_TO, ALONE_UP_TO, factor_in_words
from zbench.verify.trajectory import Reference, Trajectory

ALL_CERTAIN, ALONE_CERTAIN = 6.0, 9.0
"""Standard errors of one step's factor of all parameters, and of one: of the latter a run has many."""
OWN_ERRORS = 4.0
"""How much larger than the reference's own errors those of an engine may be."""
COHERENT_UP_TO = 0.25
"""Which share of their distance from the reference all parameters may have in common: chaos grows."""
ROUNDING_UP_TO = 4.0
"""How many times the reference's errors of its first step, before weights differed, are rounding's own."""
LOSSES_UP_TO = 16.0
_SUMS = 63
_LEAST_SUMS = 16
_UNITS = {"float32": UNIT_ROUNDOFF, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True, slots=True)
class _Shares:
    """What one step of each of P parameters has more than the reference's, as a share of the true one.

    more [P]: along the true one. error [P]: its standard error. own, own_rest [P]: of the reference beside
    the float64 run. rounding [P]: what rounding of all weights alike would add.
    """

    more: Tensor
    error: Tensor
    own: Tensor
    own_rest: Tensor
    rounding: Tensor

    @classmethod
    def of(cls, runs: Sequence[Tensor], weights: Tensor | None = None) -> "_Shares":
        """Of trial, plain and true run, each [P, 64]. weights: those before the step, if it rounds them."""
        trial, plain, true = runs
        square = true.square().sum(dim=1)
        sums = (true != 0).sum(dim=1)

        def shares(added: Tensor) -> tuple[Tensor, Tensor]:
            along = (added * true).sum(dim=1) / square
            rest = (added - along[:, None] * true).square().sum(dim=1) / square
            return along, rest.sqrt()

        more, rest = shares(trial - plain)
        own, own_rest = shares(plain - true)
        unsure = (rest / (sums - 1).clamp(min=1).sqrt()).masked_fill(sums < _LEAST_SUMS, torch.inf)
        rounding = torch.zeros(len(true)).double()
        if weights is not None:
            rounding = UNIT_ROUNDOFF * weights.norm(dim=1) / square.sqrt()
        return cls(more, unsure, own, own_rest, rounding)

    def all(self) -> tuple[float, float, float]:
        """Return the factor of all parameters together, its standard error, and the reference's own share."""
        weight = 1 / (self.error.square() + self.own_rest.square() / _SUMS + LEAST_SHARE**2)
        total = float(weight.sum())
        if not total > 0:
            return 0.0, torch.inf, 0.0
        mean, own = (float((weight * x).sum()) / total for x in (self.more, self.own))
        error = float((weight.square() * self.error.nan_to_num(posinf=0.0).square()).sum()) ** 0.5 / total
        return mean, error, abs(own)


class _Judge:
    """Judges steps in order, with the largest errors that the reference had so far."""

    def __init__(self, names: Sequence[str], adams: Mapping[str, Adam], limits: tuple[float, float]) -> None:
        """limits: of the factor of one parameter, and of all."""
        self._names, self._adams, (self._alone, self._whole) = names, adams, limits
        self._own, self._own_all = torch.zeros(len(names)).double(), 0.0
        self._rounding: float | None = None

    def faulty(self, shares: _Shares, active: Tensor, growth: float) -> tuple[float, str] | None:
        """Return by which share a step is off, and where; None for a right one.

        growth: how much further from the reference's the weights were before the step than the reference's
        from the float64 run's. What the same step makes of another distance grows with it.
        """
        usable = active & shares.more.isfinite() & (shares.own_rest < NEAR)
        usable &= shares.own.isfinite()
        if not bool(usable.any()):
            return None
        mean, error, own_all = _chosen(shares, usable).all()
        self._own = torch.maximum(self._own, shares.own.abs().nan_to_num(0.0, 0.0, 0.0) * usable)
        self._own_all = max(self._own_all, own_all)
        own = torch.maximum(self._own, torch.full_like(self._own, self._diverged()))
        rounding = statistics.median(shares.rounding[usable].tolist())
        scattered = _SUMS**0.5 * statistics.median(
            shares.error[usable & shares.error.isfinite()].tolist() or [0.0]
        )
        limit = self._whole + ALL_CERTAIN * error + OWN_ERRORS * growth * self._own_all + rounding
        limit += COHERENT_UP_TO * scattered
        common = min(max(mean, -limit), limit)
        off = (shares.more - common).abs()
        limits = (
            self._alone + ALONE_CERTAIN * shares.error + OWN_ERRORS * growth * own + shares.rounding + limit
        )
        bad = usable & (off > limits)
        if not bool(bad.any()):
            return (mean, "all parameters") if abs(mean) > limit else None
        size = mean if abs(mean) > limit else statistics.median(shares.more[bad].tolist())
        other = (shares.more - size).abs() > limits + NEAR * abs(size)
        faulty = {(self._names[at], 0) for at in bad.nonzero().flatten().tolist()}
        sound = {(self._names[at], 0) for at in (usable & ~bad & other).nonzero().flatten().tolist()}
        if sound:
            size = statistics.median(shares.more[bad].tolist())
        return size, where_of(faulty, sound, self._adams)

    def _diverged(self) -> float:
        """Return the reference's largest error of any parameter so far that its distance made, not rounding.

        Where a trajectory is chaotic, a token or a saturated unit decides a whole gradient of low rank: the
        error along it hits any parameter, so a parameter's own errors say little of its next.
        """
        largest = float(self._own.max())
        if self._rounding is None:
            self._rounding = largest
        return max(0.0, largest - ROUNDING_UP_TO * self._rounding)


def _chosen(shares: _Shares, usable: Tensor) -> _Shares:
    return _Shares(*(getattr(shares, name)[usable] for name in _Shares.__slots__))


def judge_steps(
    observed: Trajectory, reference: Reference, adams: Mapping[str, Adam], dtype: str
) -> list[Finding]:
    """Return the fault of the first step that has one; none where sketches are missing."""
    plain, true = reference.plain.sketches, reference.true_sketches
    if plain.numel() == 0 or observed.sketches.shape != plain.shape or true.shape != plain.shape:
        return []
    if observed.skipped != reference.plain.skipped:
        return []
    clipped = float(reference.clipping_error) > 0
    whole = ALL_UP_TO[dtype] + 2 * float(reference.clipping_error) if clipped else ALONE_UP_TO[dtype]
    names = reference.plain.names
    of_update = _Judge(names, adams, (LEAST_SHARE, LEAST_SHARE if dtype == "float32" else 1e-3))
    of_gradient = _Judge(names, adams, (ALONE_UP_TO[dtype], whole))
    beta1 = torch.tensor([adams[name].beta1 for name in names], dtype=torch.float64)[:, None]
    runs = (observed.sketches, plain, true)
    shows_moments = bool((observed.sketches[:, :, 1] != 0).any())  # zeros: no rank could read any
    for step in range(len(plain) - 1):
        if step in observed.skipped:
            continue
        before, after = ([run[at] for run in runs] for at in (step, step + 1))
        updates = [new[:, 0] - old[:, 0] for old, new in zip(before, after, strict=True)]
        gradients = [
            (new[:, 1] - beta1 * old[:, 1]) / (1 - beta1) for old, new in zip(before, after, strict=True)
        ]
        active, growth = reference.active[step], _growth(before)
        update = of_update.faulty(_Shares.of(updates, before[1][:, 0]), active, growth)
        if update is not None and abs(abs(update[0]) - 1) < NEAR:
            what = "is lost" if update[0] < 0 else "is done twice"
            return [Finding(1.0, f"the update of step {step + 1} {what}{_of(update[1])}")]
        gradient = of_gradient.faulty(_Shares.of(gradients), active, growth) if shows_moments else None
        if gradient is not None:
            words = factor_in_words(1 + gradient[0], gradient[1], *reference.plain.losses.shape[1:])
            return [Finding(abs(gradient[0]), f"{words} in step {step + 1}")]
        if update is not None:
            way = "long" if update[0] > 0 else "short"
            size = percent(update[0])
            return [Finding(abs(update[0]), f"updates {size} too {way} ({update[1]}) in step {step + 1}")]
    return []


def _growth(before: Sequence[Tensor]) -> float:
    """Return the distance of the weights from the reference's over that of the reference's from the true
    ones: of all, or of the median parameter, since a single one may have most of the distance.
    """
    trial, plain, true = (sketches[:, 0] for sketches in before)
    apart, own = (trial - plain).norm(dim=1), (plain - true).norm(dim=1)
    of_each: list[float] = (apart / own)[own > 0].tolist()
    overall = float(apart.norm() / own.norm()) if of_each else 1.0
    return max(1.0, overall, statistics.median(of_each or [1.0]))


def harmless_growth(observed: Trajectory, reference: Reference) -> float:
    """Return how many times the reference's errors a trial's were while they were too small for a fault.

    What the trajectory makes of them later, it makes of the reference's, too.
    """
    runs = (observed.sketches, reference.plain.sketches, reference.true_sketches)
    if runs[2].numel() == 0 or any(run.shape != runs[2].shape for run in runs):
        return 1.0
    trial, plain, true = (run[1:, :, 0] for run in runs)
    errors, own = (trial - true).norm(dim=-1), (plain - true).norm(dim=-1)
    travelled = (true - runs[2][0, :, 0]).norm(dim=-1)
    small = (errors <= LEAST_SHARE * travelled) & (own > 0)
    of_each = (errors / own).masked_fill(~small, 1.0)
    return max(1.0, float(of_each.median(dim=1).values.max()))


def _of(where: str) -> str:
    return "" if where == "all parameters" else f" ({where})"


def judge_losses(observed: Trajectory, reference: Reference, dtype: str) -> list[Finding]:
    """Return the first step whose losses are further from the reference's than rounding explains."""
    ours, plain, true = observed.losses, reference.plain.losses, reference.true_losses
    if ours.shape != plain.shape or true.shape != plain.shape or observed.skipped != reference.plain.skipped:
        return []
    apart, own, size = (x.abs().flatten(1).mean(dim=1) for x in (ours - plain, plain - true, plain))
    most = torch.from_numpy(np.maximum.accumulate(own.numpy()))
    runs = (observed.sketches, reference.plain.sketches, reference.true_sketches)
    looked = all(len(run) > len(apart) for run in runs)
    growth = [_growth([run[at] for run in runs]) if looked else 1.0 for at in range(len(apart))]
    bad = apart > LOSSES_UP_TO * most * torch.tensor(growth) + (4 * _UNITS[dtype] + LEAST_SHARE) * size
    if not bool(bad.any()):
        return []
    step = int(bad.nonzero()[0])
    share = float(apart[step] / size[step])
    return [Finding(min(share, WRONG_FROM / 2), f"losses {percent(share)} off from step {step + 1} on")]
