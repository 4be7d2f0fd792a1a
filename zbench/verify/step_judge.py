"""Judges one term of the steps of a trial, the update or the gradient, by its shares of the true one.

The first faulty step is looked for, so a judge sees the steps in order. It learns from each what rounding and
the trajectory have made of the term so far, in the reference and in the trial.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.verify.diagnosis import where_of
from zbench.verify.limits import (
    ABOVE_KINKS,
    ALL_CERTAIN,
    ALONE_CERTAIN,
    COVERED_UP_TO,
    DIVERGED,
    EXPLAINED_STEPS,
    FIRST_TIMES,
    GROUP_REST_UP_TO,
    JUMPS_UP_TO,
    KINKS_UP_TO,
    LARGE_FROM,
    NEAR,
    OWN_CERTAIN,
    REACHED_BY_KINKS,
    STEP_REST_UP_TO,
    TELLS_UP_TO,
    TYPICAL_OF,
)
from zbench.verify.replay import Adam
from zbench.verify.shares import Shares
from zbench.verify.sums import CELLS


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a step. share: what the term has more than the true one, along it; None if the difference
    has other directions. size: of the difference. where: the parameters, in words.
    """

    share: float | None
    size: float
    where: str


@dataclass(frozen=True, slots=True)
class Scale:
    """How small a fault of a term may be, by dtype and parameter.

    alone, whole: share of one parameter, and of all parameters alike. unit: one rounding. least_rest: the
    difference in other directions than the true term's that counts. typical_rest, kinks_from: how many times
    the reference's own it may be for the typical parameter, and from which factor on a kink may explain that
    of another one. constants [P]: the share that rounding of Adam's constants may have of an update. elements
    [P]. turned_round: elements whose moves may turn round by rounding, as tiny gradients do under Adam.
    first_times_from: how far a trial must be for a part to be off twice as far in a single step.
    """

    alone: float
    whole: float
    unit: float
    least_rest: float
    typical_rest: float
    kinks_from: float
    constants: Tensor
    elements: Tensor
    turned_round: float
    first_times_from: float


class StepJudge:
    """Judges steps in order, by one rule. A step is off by no more than the least size of a fault, what its
    regression leaves open, and what the trajectory has made of rounding so far.

    The reference shows the last: how far its own steps were off the float64 run's so far, all parameters
    together, and any one beside the others. A token or a saturated unit decides a whole gradient of low rank,
    and an error along it hits any parameter. A trial may be as many times as far off as it is farther away.

    If a gradient of the trial has jumped in an earlier step, as a kink of the model makes it jump, then later
    gradients may be off by a multiple of the jump.

    A part of a parameter may be off twice as far in a single step, or as far as a kink explains that has
    moved the gradient of another parameter, too. A fault stays: what is off in step after step is not
    explained.

    jumped: by which share the gradients of the trial have jumped so far. has_turned: in some step a few
    gradients alone have changed by a quarter and more, as a router or a kink changes them. limit: by which
    share all parameters together might be off in the last step, and not be named.
    """

    def __init__(self, names: Sequence[str], adams: Mapping[str, Adam], scale: Scale) -> None:
        self._names, self._adams, self._scale = names, adams, scale
        self._together = self._apart = 0.0  # largest so far
        self.jumped = self.limit = 0.0
        self._first = self._grown = torch.zeros(len(names))
        self._rest = self._slope_of_groups = self._rest_of_groups = torch.zeros(len(names))  # largest so far
        self._explained, self._typical = torch.zeros(len(names)), torch.zeros(())  # see `_counted`
        self.has_turned = False
        self._is_first = True

    def unsure(self, farther: float) -> float:
        """Return by which share the trajectory of the trial may have changed all steps after those that were
        judged.
        """
        return DIVERGED * (farther * self._together + self.jumped)

    @property
    def unsure_reference(self) -> float:
        """By which share the trajectory of the reference may have changed them."""
        return DIVERGED * self._together

    def faulty(self, shares: Shares, groups: Shares | None, farther: float, count: int) -> Fault | None:
        """Return the fault of a step; None for a right one.

        groups: None if several steps are judged together. farther: how many times as far the trial is from
        the reference as that from the float64 run. count: of steps that are judged together; what each made
        of rounding cancels over them.
        """
        usable = shares.usable
        if not bool(usable.any()):
            return None
        common = shares.pooled()
        off = (shares.base - common.base).abs() - OWN_CERTAIN * shares.base_error
        apart = max(self._apart / count**0.5, float(off[usable].max()))
        alike = max(float(common.base.abs()), apart / int(usable.sum()) ** 0.5)
        together = max(self._together / count**0.5, alike)
        if count == 1:
            self._together, self._apart = together, apart
        healthy = self._scale.constants * (1 + DIVERGED * (self._growth(shares) - 1))
        limit = self._scale.whole + ALL_CERTAIN * float(common.error) + float(common.rounding)
        limit += float(healthy[usable].median()) + DIVERGED * (farther * together + self.jumped)
        alone = self._scale.alone + healthy + DIVERGED * (farther * apart + self.jumped)
        limits = alone + ALONE_CERTAIN * shares.error + shares.rounding
        fault = self._along(shares, float(common.more), limit, limits)
        if groups is not None:
            self.limit = limit
            fault = fault or self._across(shares, groups, farther, healthy)
        return fault

    def _along(self, shares: Shares, mean: float, limit: float, limits: Tensor) -> Fault | None:
        """Return the fault of whole parameters along the true term. limit, limits [P]: of the mean over all
        parameters, and of each.
        """
        usable = shares.usable & (limits < TELLS_UP_TO)
        shared = min(max(mean, -limit), limit)  # a sound parameter shares all of it, or less
        apart_from_shared = shares.more - shares.more.clamp(min(shared, 0.0), max(shared, 0.0))
        bad = usable & (apart_from_shared.abs() > limits)
        if not bool(bad.any()):
            return Fault(mean, abs(mean), "all parameters") if TELLS_UP_TO > limit < abs(mean) else None
        size = statistics.median(shares.more[bad].tolist())
        other = (shares.more - size).abs() > limits + NEAR * abs(size)
        return Fault(size, abs(size), self._where(bad, usable & ~bad & other))

    def _across(self, shares: Shares, groups: Shares, farther: float, healthy: Tensor) -> Fault | None:
        """Return the fault of a part of a parameter, or of other directions than the true term's."""
        usable = shares.usable
        self._rest = torch.maximum(self._rest, shares.base_rest * usable)
        slope, rest = (_root_mean_square(values, groups.usable) for values in (groups.base, groups.base_rest))
        self._slope_of_groups = torch.maximum(self._slope_of_groups, slope)
        self._rest_of_groups = torch.maximum(self._rest_of_groups, rest)
        own = torch.maximum(self._rest, shares.base_rest[usable].median())
        own = own.clamp(min=self._scale.unit) * farther
        times = (shares.rest / own)[usable]
        typical = float(times.median()) / self._scale.typical_rest if len(times) >= TYPICAL_OF else 0.0
        if typical > (FIRST_TIMES if float(self._typical) < EXPLAINED_STEPS else 1.0):
            return Fault(None, float(shares.rest[usable].median()), "all parameters")
        self._typical = _counted(self._typical, torch.tensor(typical > 1))
        kinks, jump = self._jump(shares, own)

        def beyond(explained: Tensor, times: float) -> Tensor:
            return self._sizes(shares, groups, own, farther, healthy + explained, times)

        if not bool(beyond(kinks + DIVERGED * max(self.jumped, jump), 1.0).any()):
            self.jumped = max(self.jumped, jump)
        of_jumps = torch.full_like(kinks, DIVERGED * self.jumped)
        in_one_step = FIRST_TIMES if farther >= self._scale.first_times_from else 1.0
        found, unexplained = beyond(of_jumps, 1.0), beyond(kinks + of_jumps, in_one_step)
        sizes = torch.where(self._explained < EXPLAINED_STEPS, unexplained, found)
        is_explained = (found > 0) & (sizes == 0)
        is_turn = is_explained & (shares.rest > COVERED_UP_TO)
        is_turn &= shares.rest[usable].median() < ABOVE_KINKS * shares.rest
        self.has_turned |= bool(is_turn.any())
        self._explained = _counted(self._explained, is_explained)
        bad = sizes > 0
        if not bool(bad.any()):
            return None
        return Fault(None, float(sizes.max()), f"a part of {self._where(bad, usable & ~bad)}")

    def _sizes(
        self, shares: Shares, groups: Shares, own: Tensor, farther: float, healthy: Tensor, times: float
    ) -> Tensor:
        """Return [P]: by which share the worst eighth of a parameter is off, or all of it across the true
        term; 0 if nothing is beyond its limit. own [P]: the error that rounding explains. healthy [P]: what
        else a right step may have. times: as many times the limits count.
        """
        limits = (self._scale.alone + healthy + DIVERGED * farther * self._slope_of_groups)[:, None]
        limits = times * (limits + ALONE_CERTAIN * groups.error + groups.rounding)
        is_off = groups.usable & (groups.more.abs() > limits) & (limits < TELLS_UP_TO)
        along = (groups.more.abs() * is_off).amax(dim=1)
        turned = 2 * (self._scale.turned_round / self._scale.elements).sqrt()
        across = self._scale.least_rest + healthy + turned
        is_odd = shares.usable & (shares.rest > times * (STEP_REST_UP_TO * own + across))
        of_groups = self._rest_of_groups.clamp(min=self._scale.unit) * farther
        limits = times * (GROUP_REST_UP_TO * of_groups + across + 2 * turned)  # an eighth has fewer elements
        are_odd = groups.usable & (groups.rest > limits[:, None])
        is_odd |= (self._scale.elements >= LARGE_FROM) & are_odd.any(dim=1)
        return torch.maximum(along, shares.rest * is_odd)

    def _jump(self, shares: Shares, own: Tensor) -> tuple[Tensor, float]:
        """Return [P]: how far kinks of the model may have carried each parameter's gradient in this step, and
        by which share the gradients have jumped, as a kink makes them jump; 0 if they have not.

        own [P]: the error that rounding explains. A kink changes the gradients of the layers below it, and no
        others; a model's parameters are taken to be in the order of its layers.
        """
        odd = shares.rest.masked_fill(~shares.read | (shares.rest < self._scale.kinks_from * own), 0.0)
        largest, second = torch.cat([odd, odd.new_zeros(2)]).topk(2).values
        kinks = torch.where(odd == largest, second, largest)
        rest = odd.masked_fill(odd < JUMPS_UP_TO * own, 0.0)
        jumped = rest > 0
        if int(jumped.sum()) < 2 or float(largest) >= KINKS_UP_TO:
            return kinks, 0.0
        typical = float(rest[jumped].median())
        highest = int(jumped.nonzero().max()) + 1
        is_above = shares.rest[highest:] < ABOVE_KINKS * typical
        reached = int((odd[:highest] > 0).sum()) / int(shares.read[:highest].sum())
        return kinks, typical if bool(is_above.any()) and reached >= REACHED_BY_KINKS else 0.0

    def _where(self, bad: Tensor, sound: Tensor) -> str:
        places = [
            {(self._names[at], 0) for at in which.nonzero().flatten().tolist()} for which in (bad, sound)
        ]
        return where_of(places[0], places[1], self._adams)

    def _growth(self, shares: Shares) -> Tensor:
        """Return [P]: how many times as large as after the first step the reference's own errors have become:
        the parameter's, or the median parameter's.
        """
        sizes = (shares.base.square() + CELLS * shares.base_error.square()).sqrt()
        if self._is_first:
            self._first = sizes.clamp(min=self._scale.unit)
            self._grown = torch.ones_like(sizes)
            self._is_first = False
        self._grown = torch.maximum(self._grown, sizes / self._first)
        return self._grown.clamp(min=float(self._grown[shares.usable].median()))


def _counted(steps: Tensor, is_explained: Tensor) -> Tensor:
    """Return in how many steps so far a kink or luck has explained a difference. Each step without such a
    difference takes a half from it.
    """
    return torch.where(is_explained, steps + 1, steps - 0.5).clamp(min=0)


def _root_mean_square(values: Tensor, usable: Tensor) -> Tensor:
    """Return [P]: over the usable ones of [P, K]."""
    return (values.square() * usable).sum(dim=1).div(usable.sum(dim=1).clamp(min=1)).sqrt()
