"""A model that is built in shards has the bits of one built whole, and needs little more than its shard."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.making import make_trial
from zbench.engine.assembly.build import Instruments
from zbench.errors import UsageError
from zbench.measure.clock import PhaseClock
from zbench.measure.memory import allocator_meter
from zbench.measure.shim import SHIM
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import RankPool
from zbench.worker.loop import Trainer
from zbench.workloads import build_workload
from zbench.workloads.zoo import ZooModel, table

_IMAGES = ("image_size", "patch_size")


def wide(architecture: str) -> nn.Module:
    """Return a model of the zoo with four times the width."""
    entry = table()[architecture]
    widths = {k: 4 * v for k, v in entry.sizes.items() if v in (8, 16, 32) and k not in _IMAGES}
    return ZooModel(replace(entry, sizes=entry.sizes | widths), checkpointing=False)


def build(group: dist.ProcessGroup, trial: dict[str, Any]) -> tuple[dict[str, Tensor], int, int]:
    """Return the values that the engine begins with, the most bytes held while it is built, and its state."""
    torch.manual_seed(dist.get_rank(group))
    spec = TrialSpec.model_validate(trial)
    workload = build_workload(spec.workload, seed=0, world_size=spec.run.world_size, base_dir=Path.cwd())
    gc.collect()
    assert SHIM is not None
    meter = allocator_meter(SHIM)
    meter.reset()
    before = meter.live()
    cpu = torch.device("cpu")
    trainer = Trainer(spec, workload, Path.cwd(), Instruments(), device=cpu, clock=PhaseClock(), group=group)
    peak = meter.peak() - before
    values = trainer.engine.full_parameters()
    ((_, _, batch),) = trainer.batches(0)
    trainer.engine.backward(workload.loss(getattr(trainer.engine, "module", trainer.model), batch))
    held = trainer.engine.memory_by_category()  # with the gradients
    trainer.engine.step()
    trainer.engine.close()
    kinds = ("parameters", "gradients", "master", "moments")
    return values, peak, sum(size for name, size in held.items() if name.endswith(kinds))


class Copies(nn.Module):
    """Its own code reads a weight of one part while it sets another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        first = self.first.weight
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(first, 1.0)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor]:
        return (torch.randn(size, 4, generator=generator),)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)).square().mean()


ARCHITECTURES = (
    "llama", "gemma2", "gpt2", "mixtral", "qwen2_moe", "mamba", "bert", "albert", "vit", "convnext",
    "wav2vec2", "whisper",
)  # fmt: skip
MOST = 1.3
"""Bytes while building over those of the shard's state."""
BUILTIN = {"zero_stage": 3, "param_persistence_threshold": 0}
FSDP2 = {"engine": "fsdp2", "zero_stage": 3}
TIERS: dict[str, Any] = {f"wav2vec2 {FSDP2}": (), f"mixtral {BUILTIN}": pytest.mark.check}
"""A weight that two parameters give, and parameters of three dimensions; others are in the soak."""
CASES = [
    pytest.param(name, engine, marks=TIERS.get(f"{name} {engine}", pytest.mark.soak))
    for name in ARCHITECTURES
    for engine in (BUILTIN, FSDP2)
]


@pytest.mark.parametrize(("architecture", "engine"), CASES)
def test_shards_have_the_bits_and_need_little_more(
    ranks: RankPool, architecture: str, engine: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    workload = {"model": "tests.worker.test_building:wide", "options": {"architecture": architecture}}
    built = {}
    for how in ("whole", "sharded"):
        trial = make_trial(
            {**engine, "build": how}, workload={**workload, "sequence_length": 16}, world_size=2
        )
        built[how] = ranks.run(2, "tests.worker.test_building:build", trial.model_dump(mode="json"))
    for (values, _, _), (same, peak, state) in zip(*built.values(), strict=True):
        assert all(torch.equal(value, same[name]) for name, value in values.items())
        assert peak <= MOST * state, f"{architecture}: {peak / state:.2f}"


def test_code_that_needs_whole_values_is_refused_with_the_remedy(ranks: RankPool) -> None:
    trial = make_trial(
        {"zero_stage": 3, "build": "sharded"}, workload={"model": "tests.worker.test_building:Copies"}
    )
    with pytest.raises((UsageError, AssertionError), match="set build: whole"):
        ranks.run(2, "tests.worker.test_building:build", trial.model_dump(mode="json"))
