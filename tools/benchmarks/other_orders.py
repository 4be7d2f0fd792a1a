"""Engines that are right and round otherwise: the built-in one, of which sums have another order.

`engine: tools.benchmarks.other_orders:NAME`: `reversed_samples` (the last of a micro-batch first),
`reversed_ranks` (the last rank's gradients first), `other_kernels` (matrix products and attention without
oneDNN and fused kernels).
"""

from typing import Any

import torch
from torch import Tensor, nn

from zbench.engine import build_engine
from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import Collectives, Tag, TrainingEngine
from zbench.spec.engine import EngineSpec


def _built_in(model: nn.Module, spec: EngineSpec, instruments: Instruments) -> TrainingEngine:
    return build_engine(model, spec.model_copy(update={"engine": "builtin"}), instruments=instruments)


def reversed_samples(
    model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    """Let the model see each micro-batch backwards."""
    model.register_forward_pre_hook(lambda _, inputs: tuple(value.flip(0) for value in inputs))
    return _built_in(model, spec, instruments)


def other_kernels(
    model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    """Turn oneDNN and fused attention off in this process."""
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.cuda.enable_flash_sdp(False)  # the switch is the CPU's, too
    return _built_in(model, spec, instruments)


class _ReversedRanks:
    def __init__(self, inner: Collectives) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> "_Done":
        gathered = self._inner.all_gather_small(send.float(), tag).view(self._inner.world_size, -1)
        part = gathered[:, out.numel() * self._inner.shard :][:, : out.numel()]
        out.copy_(part.flip(0).cumsum(0)[-1])
        return _Done()


class _Done:
    def wait(self) -> None:
        """Return: the sum is there."""

    def is_completed(self) -> bool:
        return True


def reversed_ranks(
    model: nn.Module, spec: EngineSpec, group: object = None, *, instruments: Instruments
) -> TrainingEngine:
    """Add up gradients from the last rank to the first; it differs from three ranks on."""
    wrap = instruments.wrap_collectives
    other = Instruments(lambda inner: _ReversedRanks(wrap(inner)), instruments.wrap_adam)
    return _built_in(model, spec, other)
