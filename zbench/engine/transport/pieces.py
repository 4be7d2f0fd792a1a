"""A long gather in pieces, so that little memory of the device is needed for it."""

import torch
from torch import Tensor

from zbench.engine.protocols import Collectives, Tag

_PIECE = 1 << 22  # elements of each rank


def all_gather_to_host(collectives: Collectives, local: Tensor, tag: Tag) -> Tensor:
    """Return every rank's `local` [n] as [W, n] in CPU memory; pieces pass through the device."""
    pieces = [collectives.all_gather_small(piece, tag) for piece in local.split(_PIECE)]  # type: ignore[no-untyped-call]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
