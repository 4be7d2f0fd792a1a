"""SuperOffload: the optimizer under the backward pass (Lian et al., 2025, arXiv:2509.21271), exact.

While backward goes on, worker threads update each subgroup whose gradients have landed, as if the step will
be taken and its norm be below the limit. They read the current half of the state and write the other
(`halves`). After backward the step is one of three: the guess held (exchange the halves), gradients were
clipped or a hyperparameter changed (update again from the untouched half, then exchange), or an overflow or
an exception (exchange nothing). So a rollback restores bits by never having touched them.

A gradient is final when its bucket's last reduction of the step has landed: at the last backward. In
`unmanaged` mode only `step()` knows that; there the updates run beside the remaining reductions and the norm.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.engine.adam import NORM_CHUNK, AdamBackend
from zbench.engine.parameters import Parameters
from zbench.engine.partition import Bucket, Segment
from zbench.engine.protocols import Work
from zbench.engine.speculative.subgroups import Subgroup
from zbench.engine.speculative.updates import Update, Updates
from zbench.engine.speculative.worker import Worker


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What may be known of a step while its backward runs.

    contributed: which parameters have received a gradient on this rank. scale: the factor of gradients if
    they are not clipped. norm: whether the step will ask for the gradients' norm.
    """

    contributed: Callable[[], Sequence[bool]]
    scale: Callable[[], float]
    norm: bool


class Speculative:
    """A Schedule that updates ahead of the decision. `subgroups[b]` are those of bucket b."""

    def __init__(
        self,
        updates: Updates,
        worker: Worker,
        parameters: Parameters,
        backend: AdamBackend,
        subgroups: Sequence[Sequence[Subgroup]],
        knowledge: Knowledge,
    ) -> None:
        self.updates, self.worker, self.parameters, self.backend = updates, worker, parameters, backend
        self.subgroups, self.knowledge = subgroups, knowledge
        self._all = sorted((g for of in subgroups for g in of), key=lambda g: g.segments[0].local)
        self._ahead: dict[int, Update] = {}
        self._scale = 1.0
        self._active: Sequence[bool] = ()
        self._alike: set[int] = set()  # local starts of segments whose halves hold the same values

    def begin(self, *, last: bool) -> None:
        self.drop()

    def reduced(self, bucket: Bucket, arrival: Work | None) -> None:
        if not self._ahead:
            self._scale = self.knowledge.scale()
            self.worker.timeline = []
        there = self.knowledge.contributed()
        for subgroup in self.subgroups[bucket.index]:
            segments = subgroup.segments
            if not all(there[s.parameter] for s in segments):
                segments = tuple(s for s in segments if there[s.parameter])
            if segments:
                self._ahead[subgroup.index] = self._submit(subgroup, segments, self._scale, arrival)

    def square_sums(self) -> Tensor:
        """Return the chunk sums of this rank's gradients, [shard.length / NORM_CHUNK] float64."""
        self._collect()
        sums = self.updates.squares
        assert sums is not None, "made without room for sums"
        gradients = self.updates.optimizer.gradients
        missing = list(self._missing())
        self.backend.chunk_square_sums(
            [gradients[s.local : s.local + s.length] for s in missing],
            [sums[s.local // NORM_CHUNK : (s.local + s.length) // NORM_CHUNK] for s in missing],
        )
        return sums

    def prepare(self, scale: float, active: Sequence[bool]) -> bool:
        self._collect()
        guessed = _single(scale) == _single(self._scale)
        wrong = {k for k, update in self._ahead.items() if not guessed or not self.updates.current(update)}
        try:
            for subgroup in self._all:
                self._complete(subgroup, scale, active, again=subgroup.index in wrong)
            self.worker.collect()
        except BaseException:
            self.drop()
            raise
        self._active = active
        return bool(wrong)

    def commit(self) -> None:
        self.updates.halves.swap()
        self.updates.optimizer.commit(self._active)
        self._ahead.clear()
        self._deliver(self._active)

    def drop(self) -> bool:
        dropped = bool(self._ahead)
        self.worker.drop()
        self._ahead.clear()
        return dropped

    def bytes_by_category(self) -> dict[str, int]:
        held = self.updates.halves.bytes_by_category()
        sums = self.updates.squares
        if sums is not None:
            held["host_speculative"] = held.get("host_speculative", 0) + sums.nbytes
        return held

    def close(self) -> None:
        self.worker.close()

    def _collect(self) -> None:
        """Wait for what runs ahead. After a failure nothing has: the step can be taken again."""
        try:
            self.worker.collect()
        except BaseException:
            self.drop()
            raise

    def _submit(
        self, subgroup: Subgroup, segments: tuple[Segment, ...], scale: float, arrival: Work | None = None
    ) -> Update:
        self._alike.difference_update(s.local for s in segments)
        update = self.updates.of(subgroup, segments)
        self.worker.submit(update, scale, arrival)
        return update

    def _missing(self) -> Iterator[Segment]:
        for subgroup in self._all:
            ahead = self._ahead.get(subgroup.index)
            if ahead is None:
                yield from subgroup.segments
            elif len(ahead.segments) != len(subgroup.segments):
                done = {s.local for s in ahead.segments}
                yield from (s for s in subgroup.segments if s.local not in done)

    def _complete(self, subgroup: Subgroup, scale: float, active: Sequence[bool], *, again: bool) -> None:
        """Bring the other half of a subgroup to what the step leaves behind."""
        ahead = self._ahead.get(subgroup.index)
        if ahead is not None and not again and len(ahead.segments) == len(subgroup.segments):
            return
        done = {s.local for s in ahead.segments} if ahead is not None and not again else set()
        left = tuple(s for s in subgroup.segments if active[s.parameter] and s.local not in done)
        if left:
            self._submit(subgroup, left, scale)
        idle = [s for s in subgroup.segments if not active[s.parameter] and s.local not in self._alike]
        self.updates.keep(idle)
        self._alike.update(s.local for s in idle)

    def _deliver(self, active: Sequence[bool]) -> None:
        """Bring the committed values to parameters elsewhere, and let gathers run under the copies."""
        masters = self.updates.optimizer.masters
        for subgroup in self._all:
            for s in subgroup.segments:
                if active[s.parameter]:
                    masters[s.section].deliver(s)
            end = subgroup.segments[-1]
            self.parameters.publish(end.local + end.length)


def _single(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()
