"""When the optimizer runs. `AfterBackward` is the plain schedule; others do the same Adam calls earlier.

A schedule hears of every bucket of a step's last backward through `reduced` (BucketReducer.on_reduced), and
must leave the same bits as this one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from zbench.engine.adam import AdamBackend
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer
from zbench.engine.parameters.replicated import Parameters
from zbench.engine.partition import Bucket
from zbench.engine.protocols import Work


class Schedule(ABC):
    """Turns a step's reduced gradients into new parameters."""

    def begin(self, *, last: bool) -> None:
        """A backward starts."""
        return

    def reduced(self, bucket: Bucket, arrival: Work | None) -> None:
        """A bucket's final sums have landed, or will have when `arrival` has been waited for."""
        return

    @abstractmethod
    def prepare(self, scale: float, active: Sequence[bool]) -> bool:
        """Prepare the step with gradients times `scale` for `active` parameters; return whether work was
        rolled back. An exception leaves every bit as it was before the step.
        """

    @abstractmethod
    def square_sums(self) -> Tensor:
        """Return the sums of squares of this rank's part of the gradient, per chunk, in local order."""

    @abstractmethod
    def commit(self) -> None:
        """Take the step that was prepared."""

    def drop(self) -> bool:
        """Leave every bit as it was before the step; return whether work was rolled back."""
        return False

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds beside the optimizer's state."""
        return {}

    def close(self) -> None:
        """End what runs beside backward."""
        return


class AfterBackward(Schedule):
    """Updates everything at `step()`, subgroup by subgroup; gathers of one subgroup run under the next
    one's update.
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
