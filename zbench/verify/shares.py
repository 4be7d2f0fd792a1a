"""What a step has more than the reference's step, as a share of the true one: of parameters, and of groups.

The update and the gradient of a step are known by their signed sums, of a trial, of the plain run and of the
float64 run, which is the true one. Each is regressed on the true one. A group is 16 of the 128 sums of a
parameter: an eighth of the rows or of the columns of a matrix, such as a few attention heads, or an eighth of
a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zbench.verify.distance import TINY
from zbench.verify.limits import DIVERGED, LEAST_SHARE, LEAST_SUMS, NEAR, UNIT_ROUNDOFF
from zbench.verify.regression import Regression

_EIGHTHS = 8


def in_groups(sums: Tensor) -> Tensor:
    """Return [P, 16, N / 8]: the N signed sums [P, N] in eight groups of rows, and in eight of columns."""
    count, width = sums.shape
    rows = sums.view(count, _EIGHTHS, width // _EIGHTHS)
    columns = sums.reshape(count, _EIGHTHS, _EIGHTHS, -1).transpose(1, 2)
    return torch.cat([rows, columns.reshape(rows.shape)], dim=1)


@dataclass(frozen=True, slots=True)
class Shares:
    """What a step has more than the reference's, as a share of the true one.

    All fields [P], or [P, 16] of groups. more: along the true one; error: the standard error of it; rest:
    across the true one (L2), of few sums, too; 1 if rounding decides the term. base, base_error, base_rest:
    the same of the reference beside the float64 run. rounding: what one rounding of all weights would add.
    read: bool, whether rounding leaves the term readable. usable: bool, whether its sums are many besides.
    """

    more: Tensor
    error: Tensor
    rest: Tensor
    base: Tensor
    base_error: Tensor
    base_rest: Tensor
    rounding: Tensor
    read: Tensor
    usable: Tensor

    @classmethod
    def of(cls, runs: Sequence[Tensor], active: Tensor, weights: Tensor | None = None) -> "Shares":
        """Return the shares by signed sums [..., N] of trial, plain and true run. active [...] bool: which
        have a gradient. weights: those before the step, if it rounds them.
        """
        trial, plain, true = runs
        size, count = true.norm(dim=-1), (true != 0).sum(dim=-1)
        rounding = torch.zeros_like(size)
        if weights is not None:
            rounding = UNIT_ROUNDOFF * weights.norm(dim=-1) / size
        added, own = Regression.of(trial - plain, true), Regression.of(plain - true, true)
        is_read = active & added.slope.isfinite() & (own.across < NEAR * size)
        usable = is_read & (count >= LEAST_SUMS)
        freedom = (count - 1).clamp(min=1)
        slopes = ((fit.slope, fit.error(freedom)) for fit in (added, own))
        more, error, base, base_error = (x.masked_fill(~usable, 0.0) for pair in slopes for x in pair)
        rest, base_rest = ((fit.across / size).masked_fill(~is_read, 1.0) for fit in (added, own))
        rounding = rounding.masked_fill(~usable, 0.0)
        return cls(more, error, rest, base, base_error, base_rest, rounding, is_read, usable)

    def beside_kinks(self, farther: float, unit: float) -> "Shares":
        """Return the shares with the standard errors that a kink of the model makes likely.

        When an input of a ReLU crosses zero in the trial and not in the reference, the gradients of the
        layers below change in other directions than their own. The change has a low rank, so a part of it
        may lie along the gradient of any parameter. A wrong factor on one parameter changes no direction.
        So the largest error of any other parameter counts for each, if rounding does not explain it.
        farther: how many times as far the trial is from the reference as that from the float64 run. unit:
        one rounding.
        """
        explained = DIVERGED * farther * self.base_error.clamp(min=unit)
        odd = self.error * (self.usable & (self.error > explained))
        largest, second = torch.cat([odd, odd.new_zeros(2)]).topk(2).values
        return replace(self, error=self.error + torch.where(odd == largest, second, largest))

    def pooled(self) -> "Shares":
        """Return the mean over the first dimension, where most are usable, of what is known best."""
        weight = self.usable / (self.error.square() + self.base_error.square() + LEAST_SHARE**2)
        weight = weight / weight.sum(dim=0).clamp(min=TINY)
        slopes = ("more", "base", "rounding")
        means = {name: (weight * getattr(self, name)).sum(dim=0) for name in slopes}
        errors = ("error", "rest", "base_error", "base_rest")
        lengths = {name: (weight * getattr(self, name)).norm(dim=0) for name in errors}
        read, usable = (mask.double().mean(dim=0) > 0.5 for mask in (self.read, self.usable))
        return Shares(**means, **lengths, read=read, usable=usable)
