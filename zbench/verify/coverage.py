"""Up to which step a verdict holds: a large fault that began there would be named.

Steps are judged one by one as long as the trajectory has made little of rounding. Later faults show in the
final weights, if the weights still had a way to go that is long beside the reference's own error.
"""

from collections.abc import Mapping

import torch

from zbench.verify.limits import DISTANCE_COVERS, EQUIVALENT_UP_TO
from zbench.verify.noise import can_be_compared, least_shares
from zbench.verify.replay import Adam
from zbench.verify.trajectory import Reference

_FARTHEST_EQUIVALENT = 1 + 3 * (EQUIVALENT_UP_TO - 1)
"""Distance, in the reference's own, at which an error ratio is `EQUIVALENT_UP_TO` (`Errors.ratio`)."""


def covered_by_distance(reference: Reference, adams: Mapping[str, Adam]) -> int:
    """Return the number of steps up to which half of all updates that are lost from one of them on show
    in the distance of the final weights; 0 without a float64 run.
    """
    plain, true = reference.plain.sketches, reference.true_sketches
    if not can_be_compared(plain, true):
        return 0
    weights = true[:, :, 0]
    own = (plain[-1, :, 0] - weights[-1]).norm(dim=-1)
    way = (weights[-1] - weights[0]).norm(dim=-1)
    least = least_shares(reference, adams)
    shares = torch.tensor([least[name] for name in reference.plain.names], dtype=torch.float64)
    limits = torch.maximum(_FARTHEST_EQUIVALENT * own, shares * way)
    if not bool((way > 0).any()):
        return 0
    left = (weights[-1] - weights[:-1]).norm(dim=-1)
    times = (DISTANCE_COVERS * left / limits)[:, way > 0].median(dim=1).values
    return int((times > 1).nonzero().max()) + 1 if bool((times > 1).any()) else 0
