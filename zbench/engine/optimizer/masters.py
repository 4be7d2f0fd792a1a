"""Master weights of one dtype group: the float32 values that Adam updates, and how parameters get their
copies.
"""

from collections.abc import Sequence

from torch import Tensor

from zbench.engine.memory.buffers import FlatBuffer, bytes_of
from zbench.engine.memory.kinds import Copy
from zbench.engine.parameters.base import Parameters
from zbench.engine.partition import Extent
from zbench.engine.shard_layout import Segment


class MasterWeights:
    """Float32 weights of this rank's segments in one dtype group: here the parameters themselves, which are
    float32 and in the optimizer's own memory. `flats`: the buffers that belong to the masters alone.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.flats: list[FlatBuffer] = []

    def of(self, run: Segment) -> Tensor:
        """Return the master weights [run.length] float32."""
        return self._parameters.owned(run)

    def out(self, run: Segment) -> Tensor | None:
        """Return where Adam writes the copy in the parameter's dtype; None where the master weight is the
        parameter.
        """
        return None

    def deliver(self, run: Segment) -> None:
        """Copy what Adam wrote to the parameters, where it cannot write to them directly."""

    def release(self) -> None:
        """Return when Adam may write, because no copy reads its outputs any more."""
        self._parameters.release()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what is held in addition to the parameters."""
        return {}


class SeparateMasters(MasterWeights):
    """Float32 copies in the memory of `flat`; Adam writes the parameters in the same pass."""

    def __init__(self, parameters: Parameters, flat: FlatBuffer) -> None:
        super().__init__(parameters)
        self._flat = flat
        self.flats = [flat]

    def of(self, run: Segment) -> Tensor:
        return self._flat.run(run.local, run.length)

    def out(self, run: Segment) -> Tensor | None:
        return self._parameters.owned(run)

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self._flat.memory.prefix}master": self._flat.memory.occupied(self._flat.nbytes)}


class StagedMasters(SeparateMasters):
    """Master weights in another memory than the parameters: Adam writes a staging buffer, which is copied to
    them.
    """

    def __init__(self, parameters: Parameters, flat: FlatBuffer, staged: FlatBuffer) -> None:
        super().__init__(parameters, flat)
        self._staged = staged
        self._leaving: list[Copy] = []

    def out(self, run: Segment) -> Tensor | None:
        return self._staged.run(run.local, run.length)

    def deliver(self, run: Segment) -> None:
        staged = self._staged.run(run.local, run.length)
        self._leaving.append(self._parameters.receive(run, staged, self._staged.memory))

    def release(self) -> None:
        super().release()
        for copy in self._leaving:
            copy.release()
        self._leaving.clear()

    def bytes_by_category(self) -> dict[str, int]:
        staged = self._staged.memory.occupied(self._staged.nbytes)
        return {**super().bytes_by_category(), f"{self._flat.memory.prefix}buckets": staged}


class PartitionedMasters(MasterWeights):
    """Master weights of several kinds, each for some runs of the local index space."""

    def __init__(self, kinds: Sequence[tuple[Sequence[Extent], MasterWeights]]) -> None:
        self._kinds = kinds
        self.flats = [flat for _, masters in kinds for flat in masters.flats]

    def of(self, run: Segment) -> Tensor:
        return self._kind(run).of(run)

    def out(self, run: Segment) -> Tensor | None:
        return self._kind(run).out(run)

    def deliver(self, run: Segment) -> None:
        self._kind(run).deliver(run)

    def release(self) -> None:
        for _, masters in self._kinds:
            masters.release()

    def bytes_by_category(self) -> dict[str, int]:
        return bytes_of(masters.bytes_by_category() for _, masters in self._kinds)

    def _kind(self, run: Segment) -> MasterWeights:
        return next(m for extents, m in self._kinds if any(e.start <= run.local < e.stop for e in extents))
