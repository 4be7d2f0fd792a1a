"""The update of one subgroup from the state to where new values wait, and which segments it covers."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from torch import Tensor

from zbench import _native
from zbench.engine.adam import NORM_CHUNK, AdamTask, Slot
from zbench.engine.adam.contract import check_hyper, check_tasks
from zbench.engine.adam.native import PlanCache, call_native, flatten, steps_of
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer, UpdateRun
from zbench.engine.parameters.base import Parameters
from zbench.engine.partition import Bucket
from zbench.engine.shard_layout import Segment, ShardLayout, grouped
from zbench.engine.speculative.rollback import Rollback

LARGEST = {"cpu": 1 << 19, "cuda": 1 << 22}
"""Elements of a subgroup at most, beside a model on a device of this type. Beside a CPU an update takes about
half a millisecond: little is left over after backward. A GPU's backward is shorter than all that its thread
did for subgroups of that size: some twenty microseconds each, 2,000 times for 1e9 parameters."""


@dataclass(frozen=True, slots=True)
class Subgroup:
    """Segments (local order) of one bucket that one update covers; `index` counts subgroups over all
    buckets.
    """

    index: int
    segments: tuple[Segment, ...]


def cut(shard: ShardLayout, buckets: Sequence[Bucket], size: int) -> list[list[Subgroup]]:
    """Return the subgroups of each bucket, by bucket index, of at most `size` elements each."""
    alignment = max(size // NORM_CHUNK, 1) * NORM_CHUNK
    numbers = count()
    subgroups = []
    for bucket in sorted(buckets, key=lambda b: b.index):
        extent = shard.local(bucket)
        inside = (s for s in shard.segments if extent.start <= s.local < extent.stop)
        pieces = (piece for s in inside for piece in s.cut(alignment))
        of_bucket = grouped(pieces, alignment, lambda s: s.length)
        subgroups.append([Subgroup(next(numbers), tuple(segments)) for segments in of_bucket])
    return subgroups


@dataclass(slots=True)
class Update:
    """Adam on `segments`, in one task for each of `runs`. plan: the native update; there is none without
    memory.
    """

    subgroup: int
    segments: tuple[Segment, ...]
    runs: Sequence[UpdateRun]
    tasks: Sequence[AdamTask]
    plan: "_native.Plan | None" = None

    @property
    def elements(self) -> int:
        """How many it updates."""
        return sum(s.length for s in self.segments)


class Updates:
    """Makes updates. squares: the exact sum to which every update adds the square sums of its gradients, if
    any.
    """

    def __init__(
        self, optimizer: ShardOptimizer, parameters: Parameters, rollback: Rollback, squares: Tensor | None
    ) -> None:
        self.optimizer, self.rollback, self.squares = optimizer, rollback, squares
        self._parameters = parameters
        self._plans = PlanCache("cpu")
        self._latest: dict[tuple[int, int], tuple[list[int], Update]] = {}

    def of(self, subgroup: Subgroup, segments: tuple[Segment, ...]) -> Update:
        """Return the next update of some of a subgroup's segments, with the present hyperparameters.

        Most steps have the tasks of the latest one of this subgroup and parity, but for step and
        hyperparameters; with stochastic rounding the seed changes, too.
        """
        place = (self.rollback.parity, subgroup.index)
        skipped_steps = [self.optimizer.skipped_steps[s.parameter] for s in segments]
        latest_skipped, update = self._latest.get(place, (None, None))
        if (
            update is None
            or latest_skipped != skipped_steps
            or update.segments != segments
            or self.optimizer.stochastic
        ):
            update = self._bound(subgroup, segments)
            self._latest[place] = skipped_steps, update
        else:
            for task, run in zip(update.tasks, update.runs, strict=True):
                task.step, task.hyper = self.optimizer.when(run)
            if update.plan is not None:
                self._take_plan(update)
        return update

    def current(self, update: Update) -> bool:
        """Return whether an update that was made earlier in this step still has the present
        hyperparameters.
        """
        return all(
            (task.step, task.hyper) == self.optimizer.when(run)
            for task, run in zip(update.tasks, update.runs, strict=True)
        )

    def keep(self, segments: Sequence[Segment]) -> None:
        """Make these segments, which this step does not update, keep their values at the commit.

        Parameters beside masters in another memory are not written by an update, but copied after it.
        """
        for run in self.optimizer.runs(segments):
            for view in written_by(run):
                self.rollback.keep(view)
        for segment in segments:
            self.rollback.keep(self._parameters.owned(segment))

    def keep_masters(self, segments: Sequence[Segment]) -> None:
        """Prepare these segments to be updated in place after the commit."""
        for run in self.optimizer.runs(segments):
            check_hyper(self.optimizer.when(run)[1])
            self.rollback.keep(run.slot.param)

    def commit(self, updates: Sequence[Update]) -> None:
        """Make the results of these updates the state."""
        self.rollback.commit(v for update in updates for run in update.runs for v in written_by(run))

    def _bound(self, subgroup: Subgroup, segments: tuple[Segment, ...]) -> Update:
        runs = self.optimizer.runs(segments)
        tasks = [self._task(run) for run in runs]
        update = Update(subgroup.index, segments, runs, tasks)
        check = partial(check_tasks, tasks, "cpu")
        call_native(partial(self._take_plan, update), flatten(tasks).tensors, check)
        return update

    def _take_plan(self, update: Update) -> None:
        tasks = update.tasks
        update.plan = self._plans.plan(flatten(tasks), lambda: tasks, steps_of(tasks), self.squares)

    def _task(self, run: UpdateRun) -> AdamTask:
        slot, other = run.slot, self.rollback.other
        most = None if slot.max_exp_avg_sq is None else other(slot.max_exp_avg_sq)
        into = Slot(other(slot.param), other(slot.exp_avg), other(slot.exp_avg_sq), most)
        out = None if run.out is None else other(run.out)
        return dataclasses.replace(self.optimizer.task(run), into=into, param_out=out)


def written_by(run: UpdateRun) -> list[Tensor]:
    """Return what an update of a run writes: its slot, and the copy in the parameter's dtype."""
    views = [run.slot.param, run.slot.exp_avg, run.slot.exp_avg_sq, run.slot.max_exp_avg_sq, run.out]
    return [view for view in views if view is not None]
