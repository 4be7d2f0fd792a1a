"""Where the weights of a script went, beside those of its base: the diagnosis of a difference, in words."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.verify.limits import ALL_CERTAIN, LEAST_WAY, TELLS_UP_TO, WRONG_FROM


@dataclass(frozen=True, slots=True)
class Moves:
    """The weights of a trial and of its base, float32, and the first weights of the base, as far as known."""

    ours: Mapping[str, Tensor]
    theirs: Mapping[str, Tensor]
    first: Mapping[str, Tensor]

    def strays_from(self, truth: Mapping[str, Tensor]) -> bool:
        """Whether the trial went along the way of a more precise run, but farther or less far than the base.

        Both lengths are shares of that way. They differ beyond chance, and the trial's is not the better one:
        rounding to a short dtype loses a few per cent of the way, and less rounding is no fault.
        """
        ours, theirs = self._ways()
        if not len(theirs):
            return False
        exact = self._way_of(truth)
        factor, base_factor = (float(way @ exact / (exact @ exact)) for way in (ours, theirs))
        rest = ours - theirs - (factor - base_factor) * exact
        error = math.sqrt(float(rest @ rest) / max(1, len(rest) - 1) / float(exact @ exact))
        differs = abs(factor - base_factor) > max(LEAST_WAY, ALL_CERTAIN * error)
        return differs and abs(factor - 1) > abs(base_factor - 1)

    def diagnosis(self) -> str | None:
        """Return how the weights moved otherwise than the base's, in words; None if that is not known."""
        resting, moving = self._resting()
        if resting and not moving:
            return "no weight moved"
        if resting:
            return (
                f"{len(resting)} of {len(resting) + len(moving)} tensors did not move ({_pattern(resting)})"
            )
        ours, theirs = self._ways()
        if not len(theirs):
            return None
        far = float(ours.norm() / theirs.norm())
        cosine = float(ours @ theirs / max(ours.norm() * theirs.norm(), torch.tensor(1e-300)))
        if cosine > 1 - WRONG_FROM and abs(far - 1) > LEAST_WAY:
            return f"moved {far:.3g} times as far as the base, the same way"
        if cosine < TELLS_UP_TO and far > 2:
            return "starts from other weights, or was thrown far off"
        if cosine < TELLS_UP_TO:
            return f"moved {far:.2g} times as far as the base, elsewhere: other data, or another loss?"
        return None

    def _resting(self) -> tuple[list[str], list[str]]:
        """Return which tensors that moved in the base rest here, and which moved in both."""
        moved = [name for name, first in self.first.items() if not torch.equal(self.theirs[name], first)]
        resting = [name for name in moved if torch.equal(self.ours[name], self.first[name])]
        return resting, [name for name in moved if name not in resting]

    def _ways(self) -> tuple[Tensor, Tensor]:
        """Return the ways of the trial and of the base over all tensors that moved in the base."""
        return self._way_of(self.ours), self._way_of(self.theirs)

    def _way_of(self, run: Mapping[str, Tensor]) -> Tensor:
        """Return the way of a run from the first weights, float64, of all tensors that moved in the base."""
        resting, moving = self._resting()
        names = [*resting, *moving]
        parts = [(run[name].double() - self.first[name].double()).reshape(-1) for name in names]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _pattern(names: Sequence[str]) -> str:
    """Return one pattern for all names: `blocks.0.*`, or the first name and how many follow."""
    if len(names) == 1:
        return names[0]
    parts = zip(*(name.split(".") for name in names), strict=False)
    common = [part for part, *others in itertools.takewhile(lambda part: len(set(part)) == 1, parts)]
    return f"{'.'.join(common)}.*" if common else f"{names[0]} and {len(names) - 1} more"
