"""Engine: one training step, from a loss to new parameters."""

import math
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from types import FrameType

import torch
from torch import Tensor, nn

from zbench.engine.checkpoint.state import EngineState, StateEntry
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.gradients.norm import Summarizer
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.optimizer.schedule import Schedule
from zbench.engine.optimizer.shard_optimizer import ParamGroup, ShardOptimizer
from zbench.engine.optimizer.torch_optimizer import GROUPS_REFUSAL, SchedulerOptimizer
from zbench.engine.parameters.access import Access, parameters_of
from zbench.engine.parameters.base import Parameters
from zbench.engine.parameters.hooks import GradientHooks
from zbench.engine.parameters.ownership import Members, check_no_gradients
from zbench.engine.parameters.released import own
from zbench.engine.parameters.saved import uncompiled
from zbench.engine.parameters.threads import Turns
from zbench.engine.policies import Policies
from zbench.engine.protocols import HoldsBytes, StepInfo
from zbench.engine.transport.collective_checks import Terms
from zbench.engine.transport.rank_messages import OwnProcess
from zbench.errors import UsageError, ZbenchError

_CLOSED = "this engine is closed; build another one"


@dataclass(frozen=True, slots=True)
class Core:
    """What an engine is made of; `assembly.build` puts it together. holders: all that keeps memory."""

    parameters: Parameters
    gradients: Gradients
    optimizer: ShardOptimizer
    summarizer: Summarizer
    schedule: Schedule
    state: EngineState
    hooks: GradientHooks
    access: Access
    holders: Sequence[HoldsBytes]

    def close(self) -> None:
        """Remove every hook from the model, end background work and let go of the model's parameters.

        All of it is done, whichever raises: an update that never ends has the parameters let go of, too.
        """
        with ExitStack() as last_first:
            last_first.callback(self.state.frozen.leave)
            last_first.callback(self.parameters.leave)
            last_first.callback(self.gradients.close)
            last_first.callback(self.schedule.close)
            last_first.callback(self.hooks.remove)


class Engine:
    """A ZeRO training engine (Rajbhandari et al., 2020, arXiv:1910.02054) around one model.

    Each step is `backward` one or more times, then `step`. Parameters keep their identity and are ordinary
    tensors to the model; `p.grad` is None, and refuses to be used while a step is under way. Between steps
    the values in `param_groups` may change, and what was trained at the build may be frozen and thawed.
    `collectives`: transport. Methods that return state are collective: every rank calls the same ones in the
    same order.
    """

    def __init__(
        self, model: nn.Module, core: Core, policies: Policies, param_groups: list[ParamGroup]
    ) -> None:
        self.model, self._param_groups, self.collectives = model, param_groups, policies.collectives
        self.policies = policies
        self._open_core = [core]
        self._members = Members(core.state.param_infos, core.state.frozen.members)
        self._integrity = Integrity(core.summarizer.agreement.process)
        self._turns = Turns(core.summarizer.agreement.process)
        weakref.finalize(self, _end, self._open_core).atexit = False
        own(model.parameters(), self)

    @property
    def _core(self) -> Core:
        if not self._open_core:
            raise UsageError(_CLOSED)
        return self._open_core[0]

    def _reporting(self) -> AbstractContextManager[None]:  # errors reach ranks that wait for this one
        return self._core.summarizer.agreement.reporting()

    @uncompiled
    def backward(self, loss: Tensor, last: bool | None = None, *, retain_graph: bool = False) -> None:
        """Compute and add up gradients of `loss` (a scalar). last: this is a step's last backward, for
        multi_backward. retain_graph: keep the graph for another backward, as torch does. An exception
        discards the gradients of this step: if there were any, call `zero_grad` before the step is repeated.
        An interrupt and a refusal discard as well, and the first backward of a step may be repeated then. An
        interrupt is raised when the backward has ended, a second one at once. A backward in another thread
        waits for this one.
        """
        self._integrity.process.check()
        with self._turns.training(), ExitStack() as use:
            with self._reporting():
                use.enter_context(self._core.hooks.running())
            self._backward(loss, last, retain_graph)

    def _backward(self, loss: Tensor, last: bool | None, retain_graph: bool) -> None:
        core, scale = self._core, self.policies.scaling.scale
        with self._reporting():
            self._integrity.check()
            self.policies.accumulation.check_discarded()
            boundary = self.policies.accumulation.next(last)
            check_no_gradients((t.name, t.parameter) for t in core.state.param_infos)
            if boundary.first:
                self._members.check(self.model)
            self._members.check_frozen()
            loss = loss if scale == 1.0 else loss * scale
            core.access.absorb()
            core.hooks.begin(only=boundary.first and boundary.last is not False)
        earlier = self.policies.accumulation.count
        try:
            with uninterrupted(), self._reporting():
                core.schedule.begin()
                core.gradients.begin(boundary, loss)
                loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
                core.gradients.finish()
                core.hooks.after_backward()
                self.policies.accumulation.done()
        except BaseException as error:
            fails = isinstance(error, Exception) and not isinstance(error, ZbenchError)
            arrived = fails and any(core.gradients.contributed)
            undone = self._integrity.whole("a backward that failed could not be undone")
            with suppress(Exception), uninterrupted(), undone:
                core.hooks.after_backward()
                self._forget_step()
                self.policies.accumulation.discard(earlier, arrived)
            raise

    @uncompiled
    def step(self, *, grad_norm: bool = False) -> StepInfo:
        """Update the parameters from the gradients since the last step; UsageError if they are not complete.
        grad_norm: return the norm also where nothing is clipped. Any other exception leaves every bit as it
        was on every rank: `step` may be called again. An interrupt is raised when the step has been taken (a
        second one at once).
        """
        optimizer: SchedulerOptimizer | None = vars(self).get("optimizer")  # made when it is first asked for
        with nullcontext() if optimizer is None else optimizer.hooked():
            return self._checked_step(grad_norm)

    def _checked_step(self, grad_norm: bool) -> StepInfo:
        self._integrity.process.check()
        with self._turns.training(), uninterrupted(), self._reporting():
            self._integrity.check()
            self.policies.accumulation.check_discarded()
            self.policies.accumulation.check_step()
            return self._step(grad_norm)

    def _step(self, grad_norm: bool) -> StepInfo:
        policies, core = self.policies, self._core
        core.access.absorb()
        core.gradients.settle()
        refusal = core.optimizer.refusal() or core.schedule.refusal()
        terms = Terms(core.optimizer.hyperparameters(), refusal, core.access.edits(), core.access.checksums)
        summary = core.summarizer.gather(core.gradients.contributed, terms, norm=grad_norm)
        core.parameters.absorb_hidden()  # here the device has been waited for, where there are ranks
        loss_scale, norm = policies.scaling.scale, None  # before `judge` adapts it
        if summary.square_sum is not None:
            norm = math.sqrt(summary.square_sum) * policies.factor(loss_scale, 1.0)
        coefficient = 1.0 if norm is None else policies.clip.coefficient(norm)
        before = policies.scaling.scale, policies.scaling.good_steps
        try:
            taken = policies.scaling.judge(summary.square_sum)
            if taken:
                rolled_back = core.schedule.prepare(policies.factor(loss_scale, coefficient), summary.active)
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
            core.state.frozen.settle()
            policies.accumulation.reset()
        return StepInfo(norm, taken and coefficient != 1.0, not taken, rolled_back, loss_scale)

    @uncompiled
    def zero_grad(self) -> None:
        """Discard the gradients since the last step: the next backward begins a new one."""
        self._integrity.check()
        with self._turns.training():
            if self.holds_gradients:
                with uninterrupted():
                    self._forget_step()
            self.policies.accumulation.reset()

    def _forget_step(self) -> None:
        self._core.gradients.abandon()
        self._core.schedule.drop()
        self.policies.accumulation.reset()

    def _check_members(self) -> None:
        """Take over edits; raise UsageError for a parameter that was added to the model."""
        self._members.check(self.model)
        self._core.access.absorb()
        self._core.parameters.absorb_hidden()

    def gathered(
        self, what: nn.Module | nn.Parameter | Iterable[nn.Parameter], write: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context in which the parameters meant are whole; all ranks enter and leave it alike.

            with engine.gathered(model.head, write=True):
                model.head.weight.data.mul_(0.5)  # rank 0's values count

        With `write`, rank 0's values at the end reach every rank, master weights too; moments stay. If any
        rank raises inside, nothing is written. UsageError for other parameters, and for a write in a step.
        """
        if write and self.holds_gradients:
            raise UsageError(
                "gathered(write=True): expected no backward since the last step(); call it after step()"
            )
        self._check_members()
        return self._core.access.open(parameters_of(self.model, what), write=write)

    def checked_state(self) -> EngineState:
        """Return the state with all edits taken over; UsageError for a parameter that is not in it."""
        self._check_members()
        return self._core.state

    def full_parameters(self) -> dict[str, Tensor]:
        """Return name -> a copy of the whole parameter (float32 masters where trained), on every rank."""
        with self._turns.reading():
            values = self.checked_state().full_values()
        return {name: values[name] for name, _ in self.model.named_parameters()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> the whole exp_avg in float32 of every trained parameter, on every rank."""
        with self._turns.reading():
            moments = self.checked_state().full_moments("exp_avg")
        return {name: value.float() for name, value in moments.items()}

    @torch.no_grad()
    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's own master weights and moments, as views (`TrainingEngine.optimizer_parts`)."""
        return self.checked_state().parts()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Return everything a resumed run needs, the same on every rank; `checkpoint.state` lists the
        keys.
        """
        with self._turns.reading():
            return self.checked_state().full()

    def state_entries(self) -> list[StateEntry]:
        """Return the same as entries that are read one at a time, by every rank in the same order."""
        return list(self.checked_state().entries())

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume from `state_dict` of any world size or stage; UsageError if it does not fit the model."""
        self._integrity.process.check()
        with self._turns.training():
            self._check_members()
            self._forget_step()
            self._core.state.load(state)
            self._core.schedule.state_changed()

    @property
    def closed(self) -> bool:
        """Whether the model is free for another engine."""
        return not self._open_core

    @property
    def holds_gradients(self) -> bool:
        """Whether a step has begun: its gradients are added up here, not in `p.grad`."""
        return self.policies.accumulation.count > 0

    @property
    def schedule(self) -> Schedule:
        """When the optimizer runs."""
        return self._core.schedule

    @property
    def param_groups(self) -> list[ParamGroup]:
        """The optimizer groups, read again at every step."""
        return self._param_groups

    @param_groups.setter
    def param_groups(self, groups: object) -> None:
        raise UsageError(f"engine.{GROUPS_REFUSAL}")

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """A torch optimizer over `param_groups`, for learning rate schedulers and training loops; what it
        does, its state included, is the engine's.
        """
        return SchedulerOptimizer(self)

    def memory_by_category(self) -> dict[str, int]:
        """Return the bytes held now, by category; those in offloaded host memory have the prefix `host_`."""
        total = bytes_of(holder.bytes_by_category() for holder in self._core.holders)
        return {name: count for name, count in total.items() if count}

    def close(self) -> None:
        """Take the hooks off the model; at stage 3 take `full_parameters` before. Again does nothing."""
        if not self.closed:
            try:
                _end(self._open_core)
            finally:
                self.policies.close()
                self._integrity.refusal = _CLOSED


def _end(open_core: list[Core]) -> None:
    """Close what is open, so that its memory is freed."""
    while open_core:
        open_core.pop().close()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT until the block has ended, in the main thread, where Python delivers it.

    A second one is raised at once: the block may wait for a rank that never comes.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            held.clear()
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for number, frame in held:  # also where the block has failed: a caller may go on after that
            handler(number, frame)


class Integrity:
    """Whether an engine's state is that before or after a step; `refusal` says why it is neither.

    process: the process that may change the state.
    """

    def __init__(self, process: OwnProcess) -> None:
        self.process = process
        self.refusal: str | None = None

    def check(self) -> None:
        """Raise UsageError if the engine cannot train any more, or not in this process."""
        self.process.check()
        if self.refusal is not None:
            raise UsageError(self.refusal)

    @contextmanager
    def whole(self, failure: str) -> Iterator[None]:
        """Refuse everything from now on if the block does not run to its end. failure: what went wrong."""
        self.refusal = f"{failure}: build a new engine, and load a checkpoint"
        yield
        self.refusal = None
