"""Regression: how much of a difference lies along a direction, from sums over elements.

A fault is coherent: a wrong factor moves all elements of a term in one direction, and the slope of many
elements shows the factor far below the rounding noise of each. Rounding is incoherent: what is left across
the direction says how uncertain the slope is.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zbench.verify.limits import SEPARABLE_FROM


@dataclass(frozen=True, slots=True)
class Regression:
    """A difference on a direction, for each of P parameters.

    All fields [P] float64, sums over elements or over signed sums: square of direction², along of difference
    x direction, total of difference².
    """

    square: Tensor
    along: Tensor
    total: Tensor

    @classmethod
    def of(cls, difference: Tensor, direction: Tensor) -> "Regression":
        """Return the regression over the last dimension of two tensors of one shape."""
        return cls(
            direction.square().sum(dim=-1),
            (difference * direction).sum(dim=-1),
            difference.square().sum(dim=-1),
        )

    @classmethod
    def of_products(
        cls, products: NDArray[np.float64], row: int, beside: int = 0
    ) -> tuple["Regression", float]:
        """Return the regression of the difference on one direction, fitted together with another one, and the
        share of the other direction in the first.

        products: inner products of the difference (0) and all directions. beside: the other direction; 0 for
        none. `square` is 0 if the two directions cannot be told apart.
        """
        square, along, total = (float(products[at]) for at in ((row, row), (0, row), (0, 0)))
        share = 0.0
        if beside and products[beside, beside] > 0:
            share = float(products[row, beside] / products[beside, beside])
            along -= share * float(products[0, beside])
            rest = square - share * float(products[row, beside])
            square = rest if rest > square * SEPARABLE_FROM else 0.0
        return cls(*(torch.tensor(number, dtype=torch.float64) for number in (square, along, total))), share

    @property
    def slope(self) -> Tensor:
        """The coefficient of the direction."""
        return self.along / self.square

    @property
    def across(self) -> Tensor:
        """What is left of the difference without its part along the direction (L2)."""
        return (self.total - self.along.square() / self.square).clamp(min=0.0).sqrt()

    def error(self, freedom: Tensor) -> Tensor:
        """Return the standard error of the slope. freedom [P]: degrees of freedom."""
        return self.across / (self.square * freedom).sqrt()
