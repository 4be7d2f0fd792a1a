"""When the optimizer runs: after backward, or (other schedules) earlier with the same Adam calls and the same
bits.

A schedule gets every bucket of a step's last backward through `reduced` (Buckets.on_reduced).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from zbench.engine.partition import Bucket
from zbench.engine.protocols import Work


class Schedule(ABC):
    """Turns a step's reduced gradients into new parameters."""

    def begin(self) -> None:
        """Start a backward."""

    def reduced(self, bucket: Bucket, arrival: Work | None) -> None:
        """Note that a bucket's final sums are reduced, or will be when `arrival` has been waited for."""

    def refusal(self) -> str | None:
        """Return why the step that has begun cannot be taken, or None."""
        return None

    @abstractmethod
    def prepare(self, scale: float, active: Sequence[bool]) -> bool:
        """Prepare the step with gradients times `scale` for `active` parameters; return whether work was
        rolled back.

        An exception leaves every bit as it was before the step.
        """

    @abstractmethod
    def square_sums(self) -> Tensor:
        """Return the exact sum of squares of this rank's part of the gradient."""

    @abstractmethod
    def commit(self) -> None:
        """Take the step that was prepared."""

    def drop(self) -> bool:
        """Roll the step back, so that every bit is as before it; return whether there was work to
        roll back.
        """
        return False

    def state_changed(self) -> None:
        """Masters or moments have been written from outside: what was computed from them is void."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return the bytes that it holds in addition to the optimizer state."""
        return {}

    def close(self) -> None:
        """End background work."""
