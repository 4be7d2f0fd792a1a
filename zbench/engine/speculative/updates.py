"""The update of one subgroup from the state to where new values wait; it is bound to memory once and used
again.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from zbench import _native
from zbench.engine.adam import NORM_CHUNK, AdamTask, Hyper, Slot
from zbench.engine.adam.checks import check_hyper, check_tasks
from zbench.engine.adam.ops import call_native
from zbench.engine.adam.plan import build_plan, equal_runs, native_hyper, task_tensors
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer, UpdateRun
from zbench.engine.parameters.replicated import Parameters
from zbench.engine.shard_layout import Segment
from zbench.engine.speculative.rollback import Rollback
from zbench.engine.speculative.subgroups import Subgroup

Stamp = tuple[int, Hyper]
"""The step and the hyperparameters of a run's update."""


class Update:
    """Adam on `segments`. plan: the native update, bound to memory; there is none without memory."""

    def __init__(self, subgroup: int, segments: tuple[Segment, ...], runs: Sequence[UpdateRun]) -> None:
        self.subgroup, self.segments, self.runs = subgroup, segments, runs
        self.elements = sum(s.length for s in segments)
        self.plan: _native.Plan | None = None
        self.stamps: list[Stamp] = []

    def bind(self, tasks: Sequence[AdamTask], squares: Sequence[Tensor]) -> None:
        """Bind the update to memory; each task's chunk sums go to the beginning of its `squares`, if there
        are any.
        """
        check_tasks(tasks, "cpu")
        tensors = [tensor for task in tasks for tensor in task_tensors(task)]
        call_native(partial(self._take_addresses, tasks, squares), tensors)
        self.stamps = [(task.step, task.hyper) for task in tasks]

    def _take_addresses(self, tasks: Sequence[AdamTask], squares: Sequence[Tensor]) -> None:
        self.plan = build_plan(tasks)
        for index, sums in enumerate(squares):
            self.plan.set_squares(index, sums.data_ptr())

    def stamp(self, stamps: list[Stamp]) -> None:
        """Set the steps and hyperparameters of the next update; ValueError if one is invalid."""
        if stamps == self.stamps:
            return
        for _, hyper in stamps:
            check_hyper(hyper)
        if self.plan is not None:
            for begin, end, (step, hyper) in equal_runs(stamps):
                self.plan.set_steps(begin, end, step, native_hyper(hyper))
        self.stamps = stamps


class Updates:
    """Makes updates and keeps the latest of each subgroup and parity, because most steps need the same ones.

    squares [shard.length / NORM_CHUNK] float64, if given, receives the chunk sums of every update.
    """

    def __init__(
        self, optimizer: ShardOptimizer, parameters: Parameters, rollback: Rollback, squares: Tensor | None
    ) -> None:
        self.optimizer, self.rollback, self.squares = optimizer, rollback, squares
        self._parameters = parameters
        self._kept: dict[tuple[int, int], tuple[list[int], Update]] = {}

    def of(self, subgroup: Subgroup, segments: tuple[Segment, ...]) -> Update:
        """Return the next update of some of a subgroup's segments, with the present hyperparameters."""
        place = (self.rollback.parity, subgroup.index)
        skipped_steps = [self.optimizer.skipped_steps[s.parameter] for s in segments]
        kept = self._kept.get(place)
        if (
            kept is not None
            and kept[0] == skipped_steps
            and kept[1].segments == segments
            and not self._random
        ):
            kept[1].stamp([self.optimizer.when(run) for run in kept[1].runs])
            return kept[1]
        update = self._made(subgroup, segments)
        self._kept[place] = (skipped_steps, update)
        return update

    def current(self, update: Update) -> bool:
        """Return whether an update that was made earlier in this step still has the present
        hyperparameters.
        """
        return update.stamps == [self.optimizer.when(run) for run in update.runs]

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

    @property
    def _random(self) -> bool:
        return self.optimizer.stochastic  # the seed changes every step, and is bound

    def _made(self, subgroup: Subgroup, segments: tuple[Segment, ...]) -> Update:
        update = Update(subgroup.index, segments, self.optimizer.runs(segments))
        squares = [] if self.squares is None else self._squares(update.runs, self.squares)
        update.bind([self._task(run) for run in update.runs], squares)
        return update

    @staticmethod
    def _squares(runs: Sequence[UpdateRun], squares: Tensor) -> list[Tensor]:
        return [squares[run.segment.local // NORM_CHUNK :] for run in runs]

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
