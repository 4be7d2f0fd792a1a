"""This rank's part of Adam: moments, step counts, and the tasks that update its segments.

Every parameter has its own step count, as in torch: a parameter that got no gradient on any rank skips the
step. A *run* joins neighbouring segments with the same hyperparameters and step, so a usual step is a few
long tasks. A schedule may call `task` for any runs in any order, in place or into other slots, and calls
`commit` when the step counts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbench.engine.adam import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.contract import check_hyper, hyper_of
from zbench.engine.memory.buffers import MemoryLayout, PartitionedBuffer, bytes_of
from zbench.engine.optimizer.masters import MasterWeights
from zbench.engine.optimizer.schedule import Schedule
from zbench.engine.parameters.base import Parameters
from zbench.engine.shard_layout import Segment, ShardLayout, grouped, joined
from zbench.errors import nearest

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
ParamGroup = dict[str, Any]
"""`params` and torch's AdamW hyperparameters under torch's names, plus `bias_correction` and `decoupled`."""

HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "decoupled")
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}
_IGNORED = {"params", "name", "param_names", "foreach", "fused", *_OF_SCHEDULERS}
_UNSUPPORTED = ("maximize", "capturable", "differentiable")  # torch's keys of AdamW that are false by default


@dataclass(frozen=True, slots=True)
class UpdateRun:
    """Neighbouring elements that one task updates, and the tensors that it reads and writes."""

    segment: Segment
    group: int
    skipped: int
    slot: Slot
    grad: Tensor
    out: Tensor | None


class Moments:
    """Adam's moments in the memories of `memory_layout`. stochastic: round them to bfloat16
    stochastically.
    """

    def __init__(
        self, memory_layout: MemoryLayout, dtype: torch.dtype, *, amsgrad: bool, stochastic: bool
    ) -> None:
        self.stochastic, self.dtype = stochastic, dtype
        self.buffers = [memory_layout.zeros(dtype) for _ in MOMENTS[: 3 if amsgrad else 2]]

    def get(self, kind: str) -> PartitionedBuffer | None:
        """Return one of MOMENTS; None where there is no such moment."""
        return dict(zip(MOMENTS, self.buffers, strict=False)).get(kind)

    def bytes_by_category(self) -> dict[str, int]:
        return bytes_of(buffer.bytes_by_category("moments") for buffer in self.buffers)


class ShardOptimizer:
    """Adam on the segments of one shard. `groups[g]`: hyperparameters, read again at every step.

    planned: what `subgroups` returned last, bound to the buffers of then; who exchanges them sets it to None.
    """

    def __init__(
        self,
        shard: ShardLayout,
        masters: Sequence[MasterWeights],
        moments: Moments,
        gradients: PartitionedBuffer,
        groups: Sequence[ParamGroup],
        group_of: Sequence[int],
        *,
        sub_group_size: int,
    ) -> None:
        self.shard, self.masters, self.moments, self.gradients = shard, masters, moments, gradients
        self.groups, self.group_of = groups, group_of
        self.sub_group_size, self.stochastic = sub_group_size, moments.stochastic
        self._built = self._fixed()
        self.count = 0
        self.skipped_steps = [0] * len(group_of)
        spans = shard.layout.spans
        # where the rounding stream of each parameter begins: by registration order, whatever the layout
        self._rounding_starts = [sum(s.padded_stop - s.start for s in spans[:i]) for i in range(len(spans))]
        self.planned: tuple[list[int], list[list[UpdateRun]]] | None = None

    def subgroups(self, active: Sequence[bool]) -> list[list[UpdateRun]]:
        """Return the runs of the parameters in `active`, in local order, in subgroups of at most
        sub_group_size elements.
        """
        key = [skipped if on else -1 for skipped, on in zip(self.skipped_steps, active, strict=True)]
        if self.planned is None or self.planned[0] != key:
            runs = self._runs(self.shard.segments, key)
            self.planned = (key, grouped(runs, self.sub_group_size, lambda run: run.segment.length))
        return self.planned[1]

    def runs(self, segments: Sequence[Segment]) -> list[UpdateRun]:
        """Return the runs of some segments, bound to the present buffers."""
        return list(self._runs(segments, self.skipped_steps))

    def when(self, run: UpdateRun) -> tuple[int, Hyper]:
        """Return the step and the present hyperparameters of a run's next update."""
        return self.count + 1 - run.skipped, hyper_of(self.groups[run.group])

    def task(self, run: UpdateRun) -> AdamTask:
        """Return the next update of one run, in place, with the present hyperparameters."""
        step, hyper = self.when(run)
        task = AdamTask(run.slot, run.grad, step, hyper, param_out=run.out)
        if self.stochastic:
            span = self.shard.layout.spans[run.segment.parameter]
            task.rounding_seed = self.count + 1
            task.rounding_offset = (
                self._rounding_starts[run.segment.parameter] + run.segment.flat - span.start
            )
        return task

    def update(
        self, backend: AdamBackend, active: Sequence[bool], scale: float, publish: Callable[[int], None]
    ) -> None:
        """Take one step with gradients times `scale`; call `publish(local_stop)` when all values below it are
        updated.
        """
        self.release()
        for runs in self.subgroups(active):
            backend.update([self.task(run) for run in runs], grad_scale=scale)
            for run in runs:
                self.masters[run.segment.dtype_group].deliver(run.segment)
            publish(runs[-1].segment.local + runs[-1].segment.length)
        self.commit(active)

    def release(self) -> None:
        """Wait until no copy reads earlier values, so that updates may write."""
        for masters in self.masters:
            masters.release()

    def commit(self, active: Sequence[bool]) -> None:
        """Count the step for every parameter in `active`."""
        self.count += 1
        self.skipped_steps = [
            skipped if on else skipped + 1 for skipped, on in zip(self.skipped_steps, active, strict=True)
        ]

    def take_edit(self, segment: Segment, values: Tensor) -> None:
        """Have the masters follow parameter values [segment.length] that somebody has changed; where these
        are still the masters' rounded values, the masters keep their precision.
        """
        masters = self.masters[segment.dtype_group].of(segment)
        edit = values.to(masters.device)
        masters.copy_(torch.where(masters.to(edit.dtype) == edit, masters, edit.float()))

    def hyperparameters(self) -> tuple[object, ...]:
        """Return those of the next update, group by group."""
        return tuple(tuple(value for key, value in g.items() if key != "params") for g in self.groups)

    def refusal(self) -> str | None:
        """Return why the next update cannot be taken, or None; asked before anything is updated."""
        if self._fixed() != self._built:
            return (
                "param_groups: expected the groups' parameters and amsgrad as they were; undo the edit, and"
                " set them in the specification's param_groups"
            )
        for number, group in enumerate(self.groups):
            for key, value in group.items():
                if key not in HYPERPARAMETERS and key not in _IGNORED and (key not in _UNSUPPORTED or value):
                    names = ", ".join(HYPERPARAMETERS)
                    return (
                        f"param_groups[{number}]: the engine does not know {key}={value!r}"
                        f"{nearest(key, HYPERPARAMETERS)}; take it out, and set one of {names}"
                    )
            try:
                check_hyper(hyper_of(group))
            except (ValueError, TypeError, KeyError) as error:
                return f"param_groups[{number}]: {error!r}; set a valid value and call step() again"
        return None

    def _fixed(self) -> list[tuple[object, list[int]]]:
        """Return what may not change in groups: their parameters, and which moments there are."""
        return [(group["amsgrad"], list(map(id, group["params"]))) for group in self.groups]

    def _runs(self, segments: Sequence[Segment], key: Sequence[int]) -> Iterator[UpdateRun]:
        """Yield the runs of segments. key: each parameter's skipped steps, or -1 if it is not updated."""

        def alike(run: Segment, s: Segment) -> bool:
            return (
                self.group_of[run.parameter] == self.group_of[s.parameter]
                and key[run.parameter] == key[s.parameter]
                and self.gradients.flat(run.local) is self.gradients.flat(s.local)
                and not self.stochastic
            )

        most = max(self.sub_group_size // NORM_CHUNK, 1) * NORM_CHUNK
        for whole in joined((s for s in segments if key[s.parameter] >= 0), alike):
            yield from (self._bind(part, key) for part in whole.cut(most))

    def _bind(self, s: Segment, key: Sequence[int]) -> UpdateRun:
        masters, group = self.masters[s.dtype_group], self.group_of[s.parameter]
        exp_avg, exp_avg_sq, *most = (buffer.run(s.local, s.length) for buffer in self.moments.buffers)
        slot = Slot(masters.of(s), exp_avg, exp_avg_sq, most[0] if self.groups[group]["amsgrad"] else None)
        return UpdateRun(
            s, group, key[s.parameter], slot, self.gradients.run(s.local, s.length), masters.out(s)
        )


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
