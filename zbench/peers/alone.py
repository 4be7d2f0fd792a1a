"""Plain PyTorch on each rank, without communication: the yardstick `alone`."""

import torch
from torch import nn

from zbench.peers.stepping import TorchAdam, TorchEngine
from zbench.spec.engine import EngineSpec


def build_engine(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: object = None
) -> TorchEngine:
    """Return the model in the configuration's dtype with an unsharded fused Adam, without communication."""
    model.to(getattr(torch, spec.dtype))
    adam = TorchAdam.of(model, spec)
    named = dict(model.named_parameters())
    return TorchEngine(model, named, adam.make(), spec, set_reducing=lambda _: None)
