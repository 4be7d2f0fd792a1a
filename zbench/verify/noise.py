"""The rounding noise of a reference: how large it is in each gradient, and how it grows along the trajectory.

All figures come from the sketches of the plain run and of the float64 run.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from zbench.verify.limits import LEAST_SHARE, LEAST_WAY, UNRESOLVED_FROM, WAY_TIMES_CONSTANTS
from zbench.verify.replay import Adam, most_in_float32
from zbench.verify.trajectory import Reference


def can_be_compared(*runs: Tensor) -> bool:
    """Whether there are sketches of runs, of the same steps and parameters in each."""
    return runs[0].numel() > 0 and len({run.shape for run in runs}) == 1


def growth(reference: Reference) -> dict[str, float]:
    """Return how many times as large as after the first step the reference's errors have become.

    The errors are those of a parameter's first moments, as a share of the moments. If the errors of the
    median parameter have grown more, the growth is that of the median parameter. Errors are rounding at
    first, and then what the trajectory makes of rounding. The trajectory enlarges every other small
    difference likewise.
    """
    shares = _shares_of_noise(reference)
    if shares is None:
        return dict.fromkeys(reference.plain.names, 1.0)
    grown = [_grown(of_one) for of_one in (shares.median(dim=1).values, *shares.T)]
    return {name: max(grown[0], ratio) for name, ratio in zip(reference.plain.names, grown[1:], strict=True)}


def unresolved(reference: Reference) -> set[str]:
    """Return the parameters whose gradient is rounding noise in every step.

    The exact gradient of such a parameter is zero, or far below the rounding of the numbers that are added up
    to it: the bias of an attention key, or the bias of a convolution before a batch norm. Adam divides the
    noise by its own size, so the parameter moves by the learning rate in a random direction.
    """
    shares = _shares_of_noise(reference)
    if shares is None:
        return set()
    moved = reference.active.cumsum(dim=0).bool()
    smallest = shares.masked_fill(~moved, torch.inf).amin(dim=0)
    noisy = (smallest >= UNRESOLVED_FROM) & moved.any(dim=0)
    return {name for name, is_noise in zip(reference.plain.names, noisy.tolist(), strict=True) if is_noise}


def least_shares(
    reference: Reference, adams: Mapping[str, Adam], least: float = LEAST_WAY
) -> dict[str, float]:
    """Return the share of the distance that a parameter travelled from which on an error counts.

    least: the share for a parameter whose errors have not grown.
    """
    steps = len(reference.plain.digests)
    grown = growth(reference)
    constants = {name: WAY_TIMES_CONSTANTS * most_in_float32(adam, steps) for name, adam in adams.items()}
    return {
        name: max(least, max(LEAST_SHARE, constants.get(name, 0.0)) * factor)
        for name, factor in grown.items()
    }


def _shares_of_noise(reference: Reference) -> Tensor | None:
    """Return [S, P]: the reference's own errors of first moments as a share of the moments; None if the
    reference has no sketches. Infinite where the exact moments are zero and the reference's are not.
    """
    runs = (reference.plain.sketches, reference.true_sketches)
    if not can_be_compared(*runs):
        return None
    plain, true = (sketches[1:, :, 1] for sketches in runs)
    errors = (plain - true).norm(dim=-1)
    return torch.where(errors > 0, errors / true.norm(dim=-1), 0.0)


def _grown(shares: Tensor) -> float:
    """Return the largest of a parameter's shares over the first that is not zero."""
    finite: list[float] = shares[shares.isfinite()].tolist()
    first = next((share for share in finite if share > 0), 1.0)
    return max(1.0, max(finite, default=0.0) / first)
