"""Engine: one training step, from a loss to new parameters."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from zbench.engine.checkpoint.state import EngineState, LocalState
from zbench.engine.gradients.norm import Summarizer
from zbench.engine.gradients.sinks import Gradients
from zbench.engine.optimizer.offload_ratio import OffloadRatio
from zbench.engine.optimizer.schedule import Schedule
from zbench.engine.optimizer.shard_optimizer import ParamGroup, ShardOptimizer
from zbench.engine.parameters.hooks import GradientHooks
from zbench.engine.parameters.replicated import Parameters, ParamInfo
from zbench.engine.policies import AccumulationPolicy, Clip, LossScaling, gradient_scale, uninterrupted
from zbench.engine.protocols import Collectives, HoldsBytes, StepInfo


@dataclass(frozen=True, slots=True)
class Core:
    """What is built for one set of trained parameters; it is rebuilt when that set grows, or when its state
    moves.
    """

    param_infos: Sequence[ParamInfo]
    parameters: Parameters
    gradients: Gradients
    optimizer: ShardOptimizer
    summarizer: Summarizer
    schedule: Schedule
    hooks: GradientHooks
    state: EngineState
    holders: Sequence[HoldsBytes]

    def close(self) -> None:
        """Remove every hook from the model and end background work."""
        self.hooks.remove()
        self.schedule.close()
        self.gradients.close()


@dataclass(frozen=True, slots=True)
class Policies:
    """Choices that a rebuilt core keeps."""

    accumulation: AccumulationPolicy
    clip: Clip
    scaling: LossScaling
    share: OffloadRatio
    collectives: Collectives
    close: Callable[[], None]

    def unclipped_scale(self) -> float:
        """Return the factor that averages and unscales the gradients of a step that starts now."""
        return self.scale(self.scaling.scale, 1.0)

    def scale(self, loss_scale: float, clip: float) -> float:
        """Return the one factor that averages, unscales and clips summed gradients."""
        world, steps = self.collectives.world_size, self.accumulation.divisor
        return gradient_scale(world_size=world, accumulation=steps, loss_scale=loss_scale, clip=clip)


class SchedulerOptimizer(torch.optim.Optimizer):
    """The interface that torch's learning rate schedulers need: the engine's parameter groups and
    its step.
    """

    _opt_called = True  # schedulers watch `step` here and cannot see the engine's: they need not warn

    def __init__(self, step: Callable[[], StepInfo], groups: list[ParamGroup]) -> None:
        defaults = {key: value for key, value in groups[0].items() if key != "params"}
        super().__init__([group for group in groups if group["params"]], defaults)
        self.param_groups, self._step = groups, step

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._step()


class Engine:
    """A ZeRO training engine (Rajbhandari et al., 2020, arXiv:1910.02054) around one model.

    Each step is `backward` one or more times, then `step`. Parameters keep their identity and are ordinary
    tensors to the model; `p.grad` stays None. `param_groups` may be changed between steps, as in torch.
    """

    def __init__(
        self,
        model: nn.Module,
        build_core: Callable[[], Core],
        policies: Policies,
        param_groups: list[ParamGroup],
    ) -> None:
        self.model, self.param_groups = model, param_groups
        self._build_core, self._policies = build_core, policies
        self._core = build_core()

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        """Compute and add up gradients of `loss` (a scalar); `last` marks a step's last backward in
        multi_backward.

        An exception leaves the engine as it was after the previous step: gradients of this step are
        forgotten.
        """
        boundary = self._policies.accumulation.next(last)
        scale = self._policies.scaling.scale
        loss = loss if scale == 1.0 else loss * scale
        if boundary.first:
            self._renew()
        core = self._core
        core.schedule.begin(last=bool(boundary.last))
        core.gradients.begin(boundary, loss)
        try:
            with self._policies.share.watching():
                loss.backward()  # type: ignore[no-untyped-call]
            core.gradients.finish()
            core.hooks.after_backward()
        except BaseException:
            core.hooks.after_backward()
            self._forget_step()
            raise
        self._policies.accumulation.done()

    def step(self) -> StepInfo:
        """Update the parameters from the gradients since the last step; raise UsageError if they are not
        complete.

        Any other exception, an interrupt too, leaves every bit as it was: `step` may be called again.
        """
        policies, core = self._policies, self._core
        policies.accumulation.check_step()
        core.gradients.settle()
        summary = core.summarizer.gather(core.gradients.contributed)
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
        with uninterrupted():
            if taken:
                core.schedule.commit()
            core.gradients.clear()
            core.parameters.settle()
            policies.accumulation.reset()
        return StepInfo(norm, taken and coefficient != 1.0, not taken, rolled_back, loss_scale)

    def _forget_step(self) -> None:
        self._core.gradients.abandon()
        self._core.schedule.drop()
        self._policies.accumulation.reset()

    def _renew(self) -> None:
        """Rebuild the core when a parameter outside it has been unfrozen, or another share of the state is to
        be offloaded; state is carried over by name.
        """
        known = {id(t.parameter) for t in self._core.param_infos}
        transport = self._policies.share.decide(self.collectives, self._core.optimizer.count)
        grown = any(id(p) not in known and p.requires_grad and p.numel() for p in self.model.parameters())
        if not transport and not grown:
            return
        state = self._core.state.full()
        frozen = {k.removeprefix("frozen."): v for k, v in state.items() if k.startswith("frozen.")}
        state.update({f"param.{name}": value.float() for name, value in frozen.items()})
        self._core.close()
        self._core = self._build_core()
        self._core.state.load(state)

    def full_parameters(self) -> dict[str, Tensor]:
        """Return name -> the whole parameter (float32 master weights where trained), on every rank, as
        copies.
        """
        state = self._core.state
        values = {**state.full_masters(), **{n: v.float().clone() for n, v in state.frozen.values()}}
        return {name: values[name] for name, _ in self.model.named_parameters()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> the whole exp_avg in float32 of every trained parameter, on every rank."""
        return {name: value.float() for name, value in self._core.state.full_moments("exp_avg").items()}

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Return everything a resumed run needs, consolidated, the same on every rank; see `state` for the
        keys.
        """
        return self._core.state.full()

    @torch.no_grad()
    def local_state(self) -> LocalState:
        """Return this rank's part of the same, for a sharded checkpoint."""
        return self._core.state.local()

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume from `state_dict` of any world size or stage; UsageError if it does not fit the model."""
        self._forget_step()
        self._core.state.load(state)

    @property
    def collectives(self) -> Collectives:
        """What the engine communicates through."""
        return self._policies.collectives

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """A torch optimizer over `param_groups`, for learning rate schedulers; its step() is the engine's."""
        return SchedulerOptimizer(self.step, self.param_groups)

    def memory_by_category(self) -> dict[str, int]:
        """Return the bytes held now, by category; those in offloaded host memory have the prefix `host_`."""
        total: Counter[str] = Counter()
        for holder in self._core.holders:
            total.update(holder.bytes_by_category())
        return {name: count for name, count in total.items() if count}

    def close(self) -> None:
        """Take the hooks off the model; it stays usable with the parameters as they are.

        At stage 3 they are not whole any more: take `full_parameters` before.
        """
        self._core.close()
        self._policies.close()
