"""SuperOffload: optimizer updates during backward (Lian et al., 2025, arXiv:2509.21271), with exact results.

During backward, worker threads update each subgroup whose gradients are reduced, on the assumption that the
step will be taken and its norm is below the limit. They read the state and write elsewhere (`rollback`).
After backward there are three cases. The assumption held: commit. Gradients are clipped, or a hyperparameter
has changed: update again from the untouched state, then commit. There is an overflow or an exception: discard
what was written. So a rollback restores bits because it never wrote them. What is on the device, or has no
place in a journal, is *late*: updated in place when the step is certain.

A gradient is final when its bucket's last reduction of the step is done, in the last backward. In `unmanaged`
mode only `step()` knows which one that was; there the updates run during the remaining reductions and the
norm.
"""

from collections.abc import Callable, Sequence, Set
from ctypes import c_float
from dataclasses import dataclass

from torch import Tensor

from zbench._native import Gate
from zbench.engine.adam import AdamBackend
from zbench.engine.adam.exact_sum import exact_zero
from zbench.engine.gradients.norm import add_square_sums
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.optimizer.schedule import Schedule
from zbench.engine.parameters.base import Parameters
from zbench.engine.partition import Bucket
from zbench.engine.protocols import Work
from zbench.engine.shard_layout import Segment, joined
from zbench.engine.speculative.updates import Subgroup, Update, Updates
from zbench.engine.speculative.worker import UpdateWorker


@dataclass(frozen=True, slots=True)
class StepAssumptions:
    """What is known of a step during its backward.

    contributed: which parameters have received a gradient on this rank. scale: the factor of gradients that
    are not clipped. norm: whether the step needs the norm.
    """

    contributed: Callable[[], Sequence[bool]]
    scale: Callable[[], float]
    norm: bool


_LEFT_EDITED = (
    "expected weights to be changed by way of the model, got a change of memory that they have left."
    " Speculative offload on a CPU exchanges the memory of weights at every step, so p.data (or a numpy view)"
    " from before the last step is out of date. Call engine.zero_grad(), and take p.data anew after each"
    " step, or set rollback: journal"
)


class Speculative(Schedule):
    """Updates before the step is certain. `subgroups[b]`: those of bucket b; `late`: indices of those updated
    after it; `ahead`: subgroup index -> its update in this step, submitted during backward.
    """

    def __init__(
        self,
        updates: Updates,
        worker: UpdateWorker,
        parameters: Parameters,
        backend: AdamBackend,
        subgroups: Sequence[Sequence[Subgroup]],
        late: Set[int],
        assumptions: StepAssumptions,
    ) -> None:
        self.updates, self.worker, self.parameters, self.backend = updates, worker, parameters, backend
        self.subgroups, self.late, self.assumptions = subgroups, late, assumptions
        self._in_order = sorted(filter(None, subgroups), key=lambda of_bucket: of_bucket[0].segments[0].local)
        self._all = [subgroup for of_bucket in self._in_order for subgroup in of_bucket]
        self.ahead: dict[int, Update] = {}
        self._scale = 1.0  # of what runs ahead
        self._wrote = False  # since the last commit
        self._left_edited = False
        self._prepared: tuple[float, Sequence[bool]] = 1.0, ()
        self._valid: list[Update] = []  # updates that a commit is to take over
        self._alike: set[int] = set()  # local starts of segments that need no keeping

    def begin(self) -> None:
        self.drop()
        self._left_edited |= not self._wrote and self.parameters.left_edited()
        self.updates.optimizer.release()

    def refusal(self) -> str | None:
        if not self._left_edited:
            return None
        self._left_edited, self._wrote = False, True  # it is refused once
        return _LEFT_EDITED

    def reduced(self, bucket: Bucket, arrival: Work | None) -> None:
        if not self.ahead:
            self._scale = self.assumptions.scale()
        there = self.assumptions.contributed()
        early = [g for g in self.subgroups[bucket.index] if g.index not in self.late]
        gate = self.worker.gate_behind(arrival) if early and arrival is not None else None
        for subgroup in early:
            segments = subgroup.segments
            if not all(there[s.parameter] for s in segments):
                segments = tuple(s for s in segments if there[s.parameter])
            if segments:
                self.ahead[subgroup.index] = self._submit(subgroup, segments, self._scale, gate)

    def square_sums(self) -> Tensor:
        """Return the exact sum of squares of this rank's gradients: what updates have added, and the rest."""
        self._collect()
        gradients, taken = self.updates.optimizer.gradients, self.updates.squares
        sums = exact_zero() if taken is None else taken.clone()  # it may be asked for again
        missing = [s for g in self._all for s in (g.segments if taken is None else self._left(g))]
        add_square_sums(self.backend, [gradients.run(s.local, s.length) for s in missing], sums)
        return sums

    def prepare(self, scale: float, active: Sequence[bool]) -> bool:
        self._collect()
        guessed = c_float(scale).value == c_float(self._scale).value
        wrong = [k for k, update in self.ahead.items() if not guessed or not self.updates.current(update)]
        for index in wrong:
            del self.ahead[index]
        self._valid, self._wrote = [], True
        try:
            for subgroup in self._all:
                if subgroup.index in self.late:
                    self._hold(subgroup, active)
                else:
                    self._complete(subgroup, scale, active)
            self.worker.collect()
        except BaseException:
            self.drop()
            raise
        self._prepared = scale, active
        return bool(wrong)

    def commit(self) -> None:
        """Make what was written elsewhere the state, and update what is late."""
        (scale, active), optimizer = self._prepared, self.updates.optimizer
        optimizer.release()
        self.updates.commit(self._valid)
        optimizer.planned = None
        self._wrote = False
        self.ahead.clear()
        for of_bucket in self._in_order:
            late = [s for g in of_bucket if g.index in self.late for s in g.segments if active[s.parameter]]
            if late:
                tasks = [optimizer.task(run) for run in optimizer.runs(late)]
                self.backend.update(tasks, grad_scale=scale)
            segments = [s for g in of_bucket for s in g.segments]
            for run in joined(s for s in segments if active[s.parameter]):  # one copy, if there is one
                optimizer.masters[run.dtype_group].deliver(run)
            self.parameters.publish(segments[-1].local + segments[-1].length)
        optimizer.commit(active)

    def drop(self) -> bool:
        dropped = bool(self.ahead)
        self.worker.drop()
        self.ahead.clear()
        if self.updates.squares is not None:
            self.updates.squares.zero_()
        return dropped

    def state_changed(self) -> None:
        self.drop()
        self._alike.clear()

    def bytes_by_category(self) -> dict[str, int]:
        sums = self.updates.squares
        held = {"host_speculative": 0 if sums is None else sums.nbytes}
        return bytes_of([held, self.updates.rollback.bytes_by_category()])

    def close(self) -> None:
        self.worker.close()

    def _collect(self) -> None:
        """Wait for the speculative updates. After a failure none counts, and the step can be taken again."""
        try:
            self.worker.collect()
        except BaseException:
            self.drop()
            raise

    def _submit(
        self, subgroup: Subgroup, segments: tuple[Segment, ...], scale: float, gate: Gate | None = None
    ) -> Update:
        self._wrote = True
        self._alike.difference_update(s.local for s in segments)
        update = self.updates.of(subgroup, segments)
        self.worker.submit(update, scale, gate)
        return update

    def _left(self, subgroup: Subgroup) -> list[Segment]:
        """Return the segments that no update of this step covers."""
        update = self.ahead.get(subgroup.index)
        done = set() if update is None else {s.local for s in update.segments}
        return [s for s in subgroup.segments if s.local not in done]

    def _complete(self, subgroup: Subgroup, scale: float, active: Sequence[bool]) -> None:
        """Write a subgroup's new values to where a commit takes them from."""
        if subgroup.index in self.ahead:
            self._valid.append(self.ahead[subgroup.index])
        if segments := tuple(s for s in self._left(subgroup) if active[s.parameter]):
            self._valid.append(self._submit(subgroup, segments, scale))
        self._keep_idle(subgroup, active)

    def _hold(self, subgroup: Subgroup, active: Sequence[bool]) -> None:
        """Prepare a late subgroup to be updated in place after the commit."""
        there = [s for s in subgroup.segments if active[s.parameter]]
        self._alike.difference_update(s.local for s in there)
        self.updates.keep_masters(there)
        self._keep_idle(subgroup, active)

    def _keep_idle(self, subgroup: Subgroup, active: Sequence[bool]) -> None:
        idle = [s for s in subgroup.segments if not active[s.parameter] and s.local not in self._alike]
        self.updates.keep(idle)
        self._alike.update(s.local for s in idle)
