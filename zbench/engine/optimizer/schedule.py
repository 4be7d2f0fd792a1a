"""When the optimizer runs: after backward, or (other schedules) earlier with the same Adam calls and the same
bits.

A schedule gets every bucket of a step's last backward through `reduced` (Buckets.on_reduced).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from zbench.engine.adam import AdamBackend
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer
from zbench.engine.parameters.base import Parameters
from zbench.engine.partition import Bucket
from zbench.engine.protocols import Work


class Schedule(ABC):
    """Turns a step's reduced gradients into new parameters."""

    def begin(self, *, last: bool) -> None:
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


class AfterBackward(Schedule):
    """Updates everything at `step()`, subgroup by subgroup; all-gathers of one run during the update of the
    next.
    """

    def __init__(
        self,
        optimizer: ShardOptimizer,
        backend: AdamBackend,
        parameters: Parameters,
        square_sums: Callable[[], Tensor],
    ) -> None:
        self.optimizer, self.backend, self.parameters = optimizer, backend, parameters
        self._square_sums = square_sums
        self._prepared: tuple[float, Sequence[bool]] = 1.0, ()

    def prepare(self, scale: float, active: Sequence[bool]) -> bool:
        self._prepared = scale, active
        return False

    def square_sums(self) -> Tensor:
        return self._square_sums()

    def commit(self) -> None:
        scale, active = self._prepared
        self.optimizer.update(self.backend, active, scale, self.parameters.publish)
