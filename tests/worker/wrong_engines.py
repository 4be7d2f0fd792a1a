"""Engines that are wrong on purpose: the built-in one, changed in one place, or one that rounds otherwise.

`engine: tests.worker.wrong_engines:NAME`; `lost_5` loses the update of step 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.worker.engines import Engine, OtherOrder
from zbench.engine import build_engine
from zbench.engine.adam import AdamBackend, AdamTask
from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.spec.engine import EngineSpec

NOTHING = frozenset({"first_moments", "optimizer_parts"})


class Summed(Engine):
    """Sums gradients over ranks."""

    factor = 2.0


class SummedByNorm(Summed):
    hidden, reports_norm = NOTHING, True


class TripledByNorm(SummedByNorm):
    factor = 3.0


class SummedInSecret(Summed):
    hidden = NOTHING


class ZeroesBuffers(Engine):
    def after_step(self) -> None:
        for buffer in self.model.buffers():
            buffer.zero_()


class ZeroesBuffersOfRank1(ZeroesBuffers):
    def after_step(self) -> None:
        if dist.get_rank() == 1:
            super().after_step()


class DropsMicroBatch(Engine):
    """The last micro-batch's gradient is lost."""

    backwards = 0

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        self.backwards += 1
        super().backward(loss * float(self.backwards % 2), last)


class LosesGroups(Engine):
    """Every parameter is updated as those in no group are."""

    def changed(self, spec: EngineSpec) -> EngineSpec:
        return spec.model_copy(update={"param_groups": {}})


class KeepsGradients(Engine):
    """As much memory as a step's gradients take is in use until the next step's are there."""

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        super().backward(loss, last)
        self.kept = [torch.empty_like(parameter) for parameter in self.model.parameters()]


class DropsRank1(Engine):
    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        super().backward(loss * float(dist.get_rank() == 0), last)


class DropsTensor(Engine):
    def __init__(self, model: nn.Module, *rest: Any, **more: Any) -> None:
        super().__init__(model, *rest, **more)
        model.get_parameter("blocks.1.mlp_in.weight").register_hook(torch.zeros_like)


class TouchesFrozen(Engine):
    touched = "layers.1.weight"

    def after_step(self) -> None:
        if self.count == 3:
            self.inner.optimizer_parts()[f"{self.touched}@0"]["param"].mul_(1 + 2.0**-6)


class TouchesIdle(TouchesFrozen):
    touched = "idle.weight"


class Rounding(Engine):
    """A right engine that rounds otherwise."""

    factor = 1 + 2.0**-22


class OnlyFirstMoments(Rounding):
    hidden = frozenset({"optimizer_parts"})


class NotYet(Rounding):
    def first_moments(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        raise NotImplementedError


class FirstMomentsAsIntegers(OnlyFirstMoments):
    def first_moments(self) -> dict[str, Tensor]:
        return {name: value.long() for name, value in self.inner.first_moments().items()}


class WithoutMaximum(Rounding):
    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        parts: dict[str, dict[str, Tensor]] = self.inner.optimizer_parts()
        return {k: {kind: v for kind, v in p.items() if kind != "max_exp_avg_sq"} for k, p in parts.items()}


class MomentsOfWrongShape(Rounding):
    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        parts: dict[str, dict[str, Tensor]] = self.inner.optimizer_parts()
        return {key: part | {"exp_avg": part["exp_avg"][:-1]} for key, part in parts.items()}


class ShowsTooFew(Rounding):
    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        parts: dict[str, dict[str, Tensor]] = self.inner.optimizer_parts()
        return {k: {kind: v[:100] for kind, v in p.items()} for k, p in parts.items()}


class ShowsTwice(Rounding):
    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        parts: dict[str, dict[str, Tensor]] = self.inner.optimizer_parts()
        whole = parts.get("head.weight@0", {})
        return parts | ({"head.weight@7": {k: v[7:20] for k, v in whole.items()}} if whole else {})


def with_optimizer(**changes: Any) -> type[Engine]:
    class Changed(Engine):
        def changed(self, spec: EngineSpec) -> EngineSpec:
            return spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update=changes)})

    return Changed


def with_group(pattern: str, **changes: Any) -> type[Engine]:
    class Changed(Engine):
        def changed(self, spec: EngineSpec) -> EngineSpec:
            values = spec.model_dump()
            values["param_groups"] = {pattern: changes, **values["param_groups"]}
            return EngineSpec.model_validate(values)

    return Changed


no_decay = with_optimizer(weight_decay=0.0)
no_decay_on_biases = with_group("*.bias", weight_decay=0.0)
longer = with_optimizer(lr=1.01e-3)
longer_biases = with_group("*.bias", lr=1.01e-3)
other_beta2 = with_optimizer(betas=(0.9, 0.99))
no_bias_correction = with_optimizer(bias_correction=False)
narrow_moments = with_optimizer(moments_dtype="bfloat16")

Change = Callable[[AdamTask, Tensor, int], None]
"""Changes what an update wrote: the task, the parameters before it, the number of the call in its step."""


class _Backend:
    def __init__(self, inner: AdamBackend, change: Change, before: Callable[[AdamTask], AdamTask]) -> None:
        self._inner, self._change, self._before = inner, change, before
        self._step, self._call = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update(self, tasks: Sequence[AdamTask], **options: Any) -> None:
        self._call = self._call + 1 if tasks and tasks[0].step == self._step else 0
        self._step = tasks[0].step if tasks else self._step
        old = [task.slot.param.clone() for task in tasks]
        self._inner.update([self._before(task) for task in tasks], **options)
        for task, param in zip(tasks, old, strict=True):
            self._change(task, param, self._call)
            if task.param_out is not None:
                task.param_out.copy_(task.slot.param)


def with_adam(
    change: Change = lambda task, old, call: None, before: Callable[[AdamTask], AdamTask] = lambda task: task
) -> Callable[..., TrainingEngine]:
    """Return a builder of the built-in engine whose Adam is another one."""

    def build(
        model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
    ) -> TrainingEngine:
        wrap = instruments.wrap_adam
        broken = Instruments(
            instruments.wrap_collectives, lambda inner: _Backend(wrap(inner), change, before)
        )
        return build_engine(model, spec.model_copy(update={"engine": "builtin"}), None, instruments=broken)

    return build


def _moved(task: AdamTask, old: Tensor, *, first: float, second: float, inside: bool = False) -> None:
    """Write the update again from the new moments, with these bias corrections, in float32."""
    hyper, slot = task.hyper, task.slot
    corrected = slot.exp_avg_sq / second
    root = (corrected + hyper.eps).sqrt() if inside else corrected.sqrt() + hyper.eps
    decayed = old * (1 - hyper.lr * hyper.weight_decay)
    slot.param.copy_(decayed - hyper.lr / first * slot.exp_avg / root)


def _eps_inside(task: AdamTask, old: Tensor, call: int) -> None:
    first, second = 1 - task.hyper.beta1**task.step, 1 - task.hyper.beta2**task.step
    _moved(task, old, first=first, second=second, inside=True)


def _decayed_after(task: AdamTask, old: Tensor, call: int) -> None:
    task.slot.param.mul_(1 - task.hyper.lr * task.hyper.weight_decay)


def _without_decay(task: AdamTask) -> AdamTask:
    return replace(task, hyper=replace(task.hyper, weight_decay=0.0))


def _longer_on_rank_1(task: AdamTask) -> AdamTask:
    lr = task.hyper.lr * (1.001 if dist.get_rank() == 1 else 1.0)
    return replace(task, hyper=replace(task.hyper, lr=lr))


eps_inside = with_adam(_eps_inside)
decay_after = with_adam(_decayed_after, _without_decay)
longer_on_rank_1 = with_adam(before=_longer_on_rank_1)


def _scaled(step: int, more: float, task: AdamTask, old: Tensor, call: int) -> None:
    """Add a share of the update to what one step wrote."""
    if task.step == step:
        task.slot.param.add_(task.slot.param - old, alpha=more)


class _LateGradients(Engine):
    """Gradients of all parameters are this much larger from a step on."""

    first, more = 1, 0.0

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        self.inner.backward(loss * (1 + self.more * (self.count + 1 >= self.first)), last)


class SkipsAStep(OtherOrder):
    """Its fifth step leaves weights, moments and torch's count of steps as they were."""

    taken = 0

    def step(self) -> StepInfo:
        self.taken += 1
        if self.taken != 5:
            return super().step()
        for parameter in self._model.parameters():
            parameter.grad = None
        return StepInfo(None)

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        states = self._adam.state
        return {
            f"{name}@0": {"param": master.reshape(-1)}
            | {kind: states[master][kind].reshape(-1) for kind in ("exp_avg", "exp_avg_sq") if states[master]}
            for name, master in self._masters.items()
        }


class _StaleCopies(OtherOrder):
    """Some weights that the model computes with are not renewed, on some ranks, from a step on."""

    names: tuple[str, ...]
    ranks: tuple[int, ...] = (0, 1)
    first = 1
    taken = 0

    def step(self) -> StepInfo:
        old = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        info = super().step()
        self.taken = self.taken + 1
        for name, parameter in self._model.named_parameters():
            stale = any(part in name for part in self.names) and self.taken >= self.first
            if stale and dist.get_rank() in self.ranks:
                parameter.data.copy_(old[name])
        return info


class StaleBias(_StaleCopies):
    """One bias on rank 1."""

    names, ranks = ("blocks.1.mlp_norm.bias",), (1,)


class LastUpdateNeverArrives(_StaleCopies):
    """The model keeps the weights of the last update but one."""

    names = ("",)
    first = 12


def __getattr__(name: str) -> Callable[..., Any]:
    kind, _, number = name.partition("_")
    more = {"lost": -1.0, "twice": 1.0, "longer": 0.1}.get(kind)
    if more is not None:
        return with_adam(partial(_scaled, int(number), more))
    if kind == "gradients":
        return type(name, (_LateGradients,), {"first": int(number), "more": 0.05})
    raise AttributeError(name)
