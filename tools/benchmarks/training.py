"""The engine, model and data of a contender, as the product builds them; imports torch.

A mode is `alone` (no communication), `ddp`, `zero_redundancy`, `fsdp2`, `deepspeed-STAGE[-offload[-super]]`
(`super`: SuperOffload, at stage 3 on a device), `zbench-STAGE[-offload[-speculative]]`, or one that is
compiled: `alone-inductor`, `ddp-inductor`, `zbench-1-inductor`.
"""

from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from zbench.engine.protocols import StepInfo
from zbench.peers.deepspeed import configuration
from zbench.spec.engine import EngineSpec
from zbench.worker.engines import find_builder
from zbench.workloads.data import SyntheticTokens
from zbench.workloads.models import GPT

CLIP, LEARNING_RATE, BUCKET, PREFETCH = 1.0, 1e-3, 5_000_000, 1_100_000
VOCABULARY, LENGTH, BATCH = 8192, 128, 2
_STAGES = {"alone": 0, "ddp": 0, "zero_redundancy": 1, "fsdp2": 3}
"""The modes of torch's own engines, and the stage that each comes nearest to."""


def seeded_gpt(layers: int, width: int, *, vocabulary: int = VOCABULARY, length: int = LENGTH) -> GPT:
    """Return a GPT with heads of 64; the same weights at every call."""
    torch.manual_seed(0)
    heads = max(width // 64, 1)
    return GPT(layers=layers, width=width, heads=heads, vocabulary=vocabulary, sequence_length=length)


def random_tokens(batch_size: int, *, vocabulary: int = VOCABULARY, length: int = LENGTH) -> SyntheticTokens:
    """Return micro-batches of seeded random tokens."""
    return SyntheticTokens(vocabulary=vocabulary, sequence_length=length, batch_size=batch_size)


def spec_of(mode: str, dtype: str = "float32", backwards: int = 1) -> EngineSpec:
    """Return the configuration of a mode: the same clipping, learning rate and bucket sizes for all."""
    name, *options = mode.split("-")
    keys: dict[str, Any] = {
        "engine": {"zbench": "builtin", "alone": "ddp"}.get(name, name),
        "zero_stage": _STAGES[name] if name in _STAGES else int(options[0]),
        "gradient_clipping": CLIP,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
        "optimizer": {"lr": LEARNING_RATE},
        "dtype": dtype,
        "gradient_accumulation_steps": backwards,
    }
    if "offload" in options:
        keys["offload_optimizer"] = "cpu"
        if "speculative" in options:
            keys["offload_schedule"] = "speculative"
        else:  # one weight ahead: state is offloaded to save memory
            keys["prefetch_bucket_size"] = PREFETCH
    if name == "zbench" and "inductor" in options:
        keys["compile"] = "inductor"
    spec = EngineSpec.model_validate(keys)
    return _with_super_offload(spec) if "super" in options else spec


def _with_super_offload(spec: EngineSpec) -> EngineSpec:
    """Return DeepSpeed's configuration for the same engine, with SuperOffload."""
    theirs = configuration(spec)
    theirs["zero_optimization"]["offload_optimizer"] |= {"pin_memory": True, "super_offload": True}
    return spec.model_copy(update={"ds_config": theirs})


class Steps(Protocol):
    """What a contender needs of an engine."""

    def backward(self, loss: Tensor, last: bool | None = None) -> None: ...
    def step(self) -> StepInfo: ...


def build(mode: str, model: nn.Module, dtype: str = "float32", backwards: int = 1) -> Steps:
    """Return the engine of a mode, by the builder that a sweep would use; torch's in bfloat16 by `mixed`."""
    spec, name = spec_of(mode, dtype, backwards), mode.split("-")[0]
    if name in _STAGES:
        return _torchs(mode, model, spec)
    return find_builder(spec.engine, Path())(model, spec)


def _torchs(mode: str, model: nn.Module, spec: EngineSpec) -> Steps:
    """Return one of torch's own engines, which alone need its FSDP and DTensor: seconds to import."""
    from tools.benchmarks import mixed
    from zbench.peers.stepping import TorchAdam, TorchEngine

    name = mode.split("-")[0]
    if spec.dtype == "bfloat16" and name in mixed.BUILDERS:
        return mixed.BUILDERS[name](model, spec)
    if name == "alone":
        adam = TorchAdam.of(model, spec)
        named = dict(model.named_parameters())
        engine: Steps = TorchEngine(model, named, adam.make(), spec, set_reducing=mixed.never)
    else:
        engine = find_builder(spec.engine, Path())(model, spec)
    if isinstance(engine, TorchEngine) and mode.endswith("-inductor"):
        compiled = torch.compile(engine.module, backend="inductor")
        engine.module = cast(nn.Module, compiled)  # around DDP, which splits its graphs at buckets
    return engine
