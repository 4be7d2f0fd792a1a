"""Engine: one training step, from a loss to new parameters."""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from zbench.engine.checkpoint.reading import ReadsState
from zbench.engine.checkpoint.state import EngineState
from zbench.engine.gradients.norm import Summarizer
from zbench.engine.gradients.sinks import Gradients
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.optimizer.schedule import Schedule
from zbench.engine.optimizer.shard_optimizer import ParamGroup, ShardOptimizer
from zbench.engine.optimizer.step_policies import Policies
from zbench.engine.optimizer.torch_face import SchedulerOptimizer, appended, make_group
from zbench.engine.parameters.access import Access, parameters_of
from zbench.engine.parameters.hooks import GradientHooks
from zbench.engine.parameters.owners import own
from zbench.engine.parameters.ownership import Members, check_no_gradients
from zbench.engine.parameters.replicated import Parameters, ParamInfo
from zbench.engine.policies import Integrity, uninterrupted
from zbench.engine.protocols import HoldsBytes, StepInfo
from zbench.engine.transport.agreement import Terms
from zbench.errors import UsageError


@dataclass(frozen=True)
class Parts:
    """What is stored for one set of trained parameters; the model does not use it yet."""

    parameters: Parameters
    gradients: Gradients
    optimizer: ShardOptimizer
    summarizer: Summarizer
    schedule: Schedule
    state: EngineState
    holders: Sequence[HoldsBytes]

    @property
    def param_infos(self) -> Sequence[ParamInfo]:
        """The parameters that are trained, or have been; the others are `state.frozen`."""
        return self.state.param_infos


@dataclass(frozen=True)
class Core(Parts):
    """Parts that the model uses. They are exchanged when that set grows, or when their state moves."""

    hooks: GradientHooks
    access: Access

    @cached_property
    def members(self) -> Members:
        """All parameters that it was built with."""
        return Members(self.param_infos, self.state.frozen.members)

    def close(self) -> None:
        """Remove every hook from the model and end background work."""
        self.hooks.remove()
        self.schedule.close()
        self.gradients.close()


class Engine(ReadsState):
    """A ZeRO training engine (Rajbhandari et al., 2020, arXiv:1910.02054) around one model.

    Each step is `backward` one or more times, then `step`. Parameters keep their identity and are ordinary
    tensors to the model; `p.grad` is None, and refuses to be used while a step is under way. Between steps
    `param_groups` may change. `collectives`: transport.
    """

    def __init__(
        self,
        model: nn.Module,
        build_core: Callable[[Core | None], Callable[[], Core]],
        admit: Callable[[Mapping[str, nn.Parameter]], None],
        policies: Policies,
        param_groups: list[ParamGroup],
    ) -> None:
        """admit: checks and converts what the model has gained. build_core: stores what the old core has."""
        self.model, self.param_groups, self.collectives = model, param_groups, policies.collectives
        self._build_core, self._admit, self.policies = build_core, admit, policies
        self._defaults = {key: value for key, value in param_groups[0].items() if key != "params"}
        self._integrity, self._outdated = Integrity(), False
        self._cores = [build_core(None)()]
        weakref.finalize(self, _end, self._cores).atexit = False
        own(model.parameters(), self)

    @property
    def _core(self) -> Core:
        return self._cores[0]

    def _reporting(self) -> AbstractContextManager[None]:  # errors reach ranks that wait for this one
        return self._core.summarizer.agreement.reporting() if self._cores else nullcontext()

    def backward(self, loss: Tensor, last: bool | None = None, *, retain_graph: bool = False) -> None:
        """Compute and add up gradients of `loss` (a scalar). last: this is a step's last backward, for
        multi_backward. retain_graph: keep the graph for another backward, as torch does. An exception
        discards the gradients of this step; so does an interrupt, which is raised when the backward has
        ended (a second one at once).
        """
        with self._reporting():
            self._integrity.check()
            boundary = self.policies.accumulation.next(last)
            check_no_gradients((t.name, t.parameter) for t in self._core.param_infos)
            if boundary.first:
                self._renew()
                self.policies.share.begin(self._core.optimizer.count)
            core, scale = self._core, self.policies.scaling.scale
            loss = loss if scale == 1.0 else loss * scale
            core.access.absorb()
            core.hooks.begin(only=boundary.first and boundary.last is not False)
        try:
            with uninterrupted(), self._reporting():
                core.schedule.begin(last=bool(boundary.last))
                core.gradients.begin(boundary, loss)
                with self.policies.share.watching():
                    loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
                core.gradients.finish()
                core.hooks.after_backward()
                self.policies.accumulation.done()
        except BaseException:
            undone = self._integrity.whole("a backward that failed could not be undone")
            with suppress(Exception), uninterrupted(), undone:
                core.hooks.after_backward()
                self._forget_step()
            raise

    def step(self, *, grad_norm: bool = False) -> StepInfo:
        """Update the parameters from the gradients since the last step; UsageError if they are not complete.
        grad_norm: return the norm also where nothing is clipped. Any other exception leaves every bit as it
        was on every rank: `step` may be called again. An interrupt is raised when the step has been taken (a
        second one at once).
        """
        with uninterrupted(), self._reporting():
            self._integrity.check()
            self.policies.accumulation.check_step()
            info = self._step(grad_norm)
            if self.policies.share.decide(self.collectives, self._core.optimizer.count):
                self._outdated = True
                with suppress(Exception):  # the step was taken; the next backward tries again, and raises
                    self._rebuild()
        return info

    def _step(self, grad_norm: bool) -> StepInfo:
        policies, core = self.policies, self._core
        core.access.absorb()
        core.gradients.settle()
        terms = Terms(core.optimizer.hyperparameters(), core.optimizer.refusal())
        summary = core.summarizer.gather(core.gradients.contributed, terms, norm=grad_norm)
        loss_scale, norm = policies.scaling.scale, None
        if summary.square_sum is not None:
            norm = math.sqrt(summary.square_sum) * policies.scale(loss_scale, 1.0)
        coefficient = 1.0 if norm is None else policies.clip.coefficient(norm)
        before = policies.scaling.scale, policies.scaling.good_steps
        try:
            taken = policies.scaling.judge(summary.square_sum)
            if taken:
                rolled_back = core.schedule.prepare(policies.scale(loss_scale, coefficient), summary.active)
            else:
                rolled_back = core.schedule.drop()
        except BaseException:
            policies.scaling.resume(*before)
            raise
        with self._integrity.whole("a step was broken off while weights were being updated"):
            if taken:
                core.schedule.commit()
                core.parameters.mark_updated(summary.active)
            core.gradients.clear()
            core.parameters.settle()
            policies.accumulation.reset()
        return StepInfo(norm, taken and coefficient != 1.0, not taken, rolled_back, loss_scale)

    def zero_grad(self) -> None:
        """Discard the gradients since the last step: the next backward begins a new one."""
        self._integrity.check()
        if self.holds_gradients:
            with uninterrupted():
                self._forget_step()

    def _forget_step(self) -> None:
        self._core.gradients.abandon()
        self._core.schedule.drop()
        self.policies.accumulation.reset()

    def _renew(self) -> None:
        """Between steps, rebuild the core when a parameter has been unfrozen, or its state is to move."""
        self._check_members()
        if not self.holds_gradients and (self._outdated or self._core.members.unfrozen()):
            self._rebuild()

    def _rebuild(self) -> None:
        """Build a core for what is trained and offloaded now beside the present one; then exchange them."""
        put_in_place = self._build_core(self._core)
        with uninterrupted(), self._integrity.whole("an exchange of the parameters was broken off"):
            self._cores[0] = put_in_place()
        self._outdated = False

    def _check_members(self) -> None:
        """Take over edits; raise UsageError for a parameter that was added to the model."""
        self._core.members.check(self.model)
        self._core.access.absorb()

    def _between_steps(self, call: str) -> None:
        if self.holds_gradients:
            raise UsageError(f"{call}: expected no backward since the last step(); call it after step()")

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Train more parameters, in an optimizer group of their own: those of a module that the model has
        gained, or ones that were always frozen. Moments and counts stay. Every rank calls it alike, between
        steps; of new parameters rank 0's values count. UsageError for parameters that are trained already or
        are not the model's.
        """
        self._integrity.check()
        self._between_steps("add_param_group")
        members = self._core.members
        with self._reporting():
            self._core.access.absorb()
            added = make_group(self.model, members.trained, self._defaults, group)
            self._admit(members.gained(self.model, added["params"]))
            with appended(self.param_groups, added):
                self._rebuild()
        own(added["params"], self)

    def gathered(
        self, what: nn.Module | nn.Parameter | Iterable[nn.Parameter], write: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context in which the parameters meant are whole; all ranks enter and leave it alike.

            with engine.gathered(model.head, write=True):
                model.head.weight.data.mul_(0.5)  # rank 0's values count

        With `write`, rank 0's values at the end reach every rank, master weights too; moments stay. If any
        rank raises inside, nothing is written. UsageError for other parameters, and for a write in a step.
        """
        if write:
            self._between_steps("gathered(write=True)")
        self._check_members()
        return self._core.access.open(parameters_of(self.model, what), write=write)

    def checked_state(self) -> EngineState:
        self._renew()
        return self._core.state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume from `state_dict` of any world size or stage; UsageError if it does not fit the model."""
        self._check_members()
        self._forget_step()
        self.checked_state().load(state)
        self._core.schedule.state_changed()

    @property
    def closed(self) -> bool:
        """Whether the model is free for another engine."""
        return not self._cores

    @property
    def holds_gradients(self) -> bool:
        """Whether a step has begun: its gradients are added up here, not in `p.grad`."""
        return self.policies.accumulation.count > 0

    @property
    def schedule(self) -> Schedule:
        """When the optimizer runs. A rebuild (a parameter is unfrozen or added) replaces it."""
        return self._core.schedule

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """A torch optimizer over `param_groups`, for learning rate schedulers; its step() is the engine's."""
        return SchedulerOptimizer(self.step, self.zero_grad, self.add_param_group, self.param_groups)

    def memory_by_category(self) -> dict[str, int]:
        """Return the bytes held now, by category; those in offloaded host memory have the prefix `host_`."""
        total = bytes_of(holder.bytes_by_category() for holder in self._core.holders)
        return {name: count for name, count in total.items() if count}

    def close(self) -> None:
        """Take the hooks off the model; at stage 3 take `full_parameters` before. Again does nothing."""
        if self._cores:
            _end(self._cores)
            self.policies.close()
            self._integrity.refusal = "this engine is closed; build another one"


def _end(cores: list[Core]) -> None:
    """Take an engine's hooks off its model, so that its memory is freed."""
    while cores:
        core = cores.pop()
        core.close()
        core.parameters.leave()
        core.state.frozen.leave()
