"""Whether a step that was run twice from the same seed was the same: else no difference means anything."""

import torch
from torch import Tensor

from zbench.errors import UsageError

_ROUNDING = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
"""Relative difference of values that were added up in another order, by the model's dtype."""


def same(first: Tensor, second: Tensor, *, device: str, dtype: str) -> Tensor:
    """Return bool, of the shape of both: which values are the same. Two that are not numbers are.

    A CPU adds in one order, so every bit counts; another device may not, and its rounding is allowed for.
    """
    rounding = 0.0 if device == "cpu" else _ROUNDING[dtype]
    return torch.isclose(first, second, rtol=rounding, atol=0.0, equal_nan=True)


def require_same(what: str, first: Tensor, second: Tensor, *, device: str, dtype: str) -> None:
    """Raise UsageError, with the remedy, unless all values of both runs are the same."""
    other = ~same(first, second, device=device, dtype=dtype)
    if bool(other.any()):
        seen = f"{what} {first[other][0]:.6g} and {second[other][0]:.6g}"
        raise UsageError(
            f"workload: two runs of the first step from the same seed differ ({seen}), so nothing can be"
            " verified: let the model and its data draw from the global generators of torch, random and"
            " numpy.random, which are seeded, or set verify.mode: off"
        )
