"""Engines that are wrong on purpose, as a sweep names them: `engine:
tests.worker.broken_engines:drops_micro_batch`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zbench.engine import build_engine
from zbench.engine.adam import AdamBackend, AdamTask
from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.spec.engine import EngineSpec

SCALED_PARAMETER = "layers.1.weight"
FIRST_WRONG_STEP = 2


class _Forwarding:
    """An engine that does what the one inside it does."""

    def __init__(self, inner: TrainingEngine) -> None:
        self._inner = inner
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self) -> StepInfo:
        self.steps += 1
        return self._inner.step()


class _DropsLastMicroBatch(_Forwarding):
    """From the second step on, the last micro-batch adds nothing."""

    def __init__(self, inner: TrainingEngine, micro_batches: int) -> None:
        super().__init__(inner)
        self._micro_batches, self._seen = micro_batches, 0

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        self._seen += 1
        dropped = self._seen % self._micro_batches == 0 and self.steps + 1 >= FIRST_WRONG_STEP
        self._inner.backward(loss * 0.0 if dropped else loss, last)


def drops_micro_batch(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: Instruments
) -> _Forwarding:
    inner = build_engine(model, spec, None, instruments=instruments)
    return _DropsLastMicroBatch(inner, spec.gradient_accumulation_steps)


def scales_gradient(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: Instruments
) -> _Forwarding:
    """From the second step on, one parameter's gradient is a thousandth too large."""
    engine = _Forwarding(build_engine(model, spec, None, instruments=instruments))

    def scale(gradient: Tensor) -> Tensor:
        return gradient * 1.001 if engine.steps + 1 >= FIRST_WRONG_STEP else gradient

    name = (
        SCALED_PARAMETER if SCALED_PARAMETER in dict(model.named_parameters()) else "blocks.1.mlp_in.weight"
    )
    model.get_parameter(name).register_hook(scale)
    return engine


class _UpdatesTwice:
    """Applies the first task of rank 0 twice, from the second step on."""

    def __init__(self, inner: AdamBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update(self, tasks: Sequence[AdamTask], **options: Any) -> None:
        self._inner.update(tasks, **options)
        if tasks and tasks[0].step >= FIRST_WRONG_STEP and torch.distributed.get_rank() == 0:
            self._inner.update(tasks[:1], **options)


def updates_shard_twice(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    broken = Instruments(
        instruments.wrap_collectives, lambda inner: _UpdatesTwice(instruments.wrap_adam(inner))
    )
    return build_engine(model, spec, None, instruments=broken)


def forgets_weight_decay(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    optimizer = spec.optimizer.model_copy(update={"weight_decay": 0.0})
    return build_engine(
        model, spec.model_copy(update={"optimizer": optimizer}), None, instruments=instruments
    )


class _StraysOnOneRank(_Forwarding):
    """Rank 1 reports other parameters than the rest from the second step on."""

    def full_parameters(self) -> dict[str, Tensor]:
        parameters: dict[str, Tensor] = self._inner.full_parameters()
        if self.steps >= FIRST_WRONG_STEP and torch.distributed.get_rank() == 1:
            return {name: value * 1.001 for name, value in parameters.items()}
        return parameters


def strays_on_one_rank(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: Instruments
) -> _Forwarding:
    return _StraysOnOneRank(build_engine(model, spec, None, instruments=instruments))
