"""Sketches: a few random sums of a tensor's elements, which every step leaves of weights and first moments.

A sketch is linear. So the sketches of a step's update and gradient follow from those before and after it, and
a whole tensor's is the sum of its parts'.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

SKETCH = 64
_ROWS = 1 << 10
"""Rows of one product in float32, whose rounding is far below what a sketch can show."""


def sketch(values: Tensor, start: int = 0) -> Tensor:
    """Return [64] float64 sums of a tensor's elements, each row of 64 with a random sign.

    They are in memory that is not torch's: what a step keeps would count as its own.
    start: the place of the first element in the flat tensor that `values` is a part of.
    """
    flat = values.detach().reshape(-1)
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    if ahead := start % SKETCH:  # a row that begins in another part
        row = torch.nn.functional.pad(flat[: SKETCH - ahead], (ahead, 0))
        rest = flat[SKETCH - ahead :]
        return sketch(row, start - ahead) + (sketch(rest, start - ahead + SKETCH) if len(rest) else 0.0)
    first = start // SKETCH
    whole = len(flat) // SKETCH
    signs = _signs(flat.device, flat.dtype)
    total = torch.zeros(SKETCH, dtype=torch.float64, device=flat.device)
    for rows in torch.split(flat[: whole * SKETCH].view(whole, SKETCH), _ROWS):
        of_rows = signs[first % _ROWS :][: len(rows)]
        total += of_rows @ rows
        first += len(rows)
    rest = flat[whole * SKETCH :]
    total[: len(rest)] += signs[first % _ROWS] * rest
    return _outside(total)


def _outside(values: Tensor) -> Tensor:
    """Return a copy on the host in memory that is not torch's."""
    return torch.from_numpy(values.cpu().numpy().copy())


def _signs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the signs of rows, which repeat after `_ROWS`; twice as many, to begin anywhere."""
    return torch.from_numpy(_signs_of(str(dtype).removeprefix("torch."))).to(device)


@cache
def _signs_of(dtype: str) -> Any:
    signs = np.random.default_rng(0).integers(2, size=_ROWS) * 2 - 1
    return np.tile(signs, 2).astype(dtype)


def sketches(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return [P, 64]: the sketch of each of `names`; zeros for one that is not there."""
    return torch.stack([sketch(tensors[n]) if n in tensors else torch.zeros(SKETCH).double() for n in names])


Partial = dict[str, tuple[int, Tensor]]
"""By parameter: how many of its elements a rank's parts have, and their sketch."""


def of_parts(parts: Mapping[str, Mapping[str, Tensor]], kind: str) -> Partial:
    """Return what a rank's parts `NAME@START` have of one kind; without a number they start at 0."""
    result: Partial = {}
    for key, part in parts.items():
        if kind in part:
            name, _, start = key.rpartition("@")
            count, total = result.get(name, (0, torch.zeros(SKETCH).double()))
            share = sketch(part[kind], int(start) if start.isdecimal() else 0)
            result[name] = (count + part[kind].numel(), share if count == 0 else _outside(total + share))
    return result


def together(of_ranks: Sequence[Partial], rank: int, sizes: Mapping[str, int]) -> Tensor:
    """Return [P, 64]: the sketches of whole parameters, from a rank's own parts or all ranks'.

    NaN where the parts are not the whole; zeros where no rank has any, as before the first step.
    """
    rows = []
    for name, size in sizes.items():
        partials = [of_ranks[rank].get(name, (0, torch.zeros(SKETCH).double()))]
        every = partials if partials[0][0] == size else [one[name] for one in of_ranks if name in one]
        count = sum(elements for elements, _ in every)
        total = sum((one for _, one in every), torch.zeros(SKETCH).double())
        rows.append(total if count in (0, size) else total * torch.nan)
    return torch.stack(rows)
