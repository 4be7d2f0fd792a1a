"""A model that is built in shards has the bits of one built whole, and needs little more than its shard."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.conftest import ranks
from tests.making import make_trial
from zbench.engine.assembly.build import Instruments
from zbench.errors import UsageError
from zbench.spec.trial import builds_sharded
from zbench.testing.ranks import RankPool
from zbench.worker import engines

__all__ = ["ranks"]

ARCHITECTURES = (
    "llama", "gemma2", "gpt2", "mixtral", "qwen2_moe", "mamba", "bert", "albert", "vit", "convnext",
    "wav2vec2", "whisper",
)  # fmt: skip
SHORT = ("mixtral", "wav2vec2")
"""Parameters of three dimensions, and a weight that two parameters give."""
MOST = 1.3
"""Bytes while building over those of the shard's state."""
ENGINES: list[dict[str, Any]] = [
    {"zero_stage": 3, "param_persistence_threshold": 0},
    {"engine": "fsdp2", "zero_stage": 3},
]


def check(ranks: RankPool, architecture: str, engine: dict[str, Any]) -> None:
    workload = {"model": "tests.worker.building:wide", "options": {"architecture": architecture}}
    built = {}
    for build in ("whole", "sharded"):
        trial = make_trial(
            {**engine, "build": build}, workload={**workload, "sequence_length": 16}, world_size=2
        )
        built[build] = ranks.run(2, "tests.worker.building:build", trial.model_dump(mode="json"))
    for (values, _, _), (same, peak, state) in zip(*built.values(), strict=True):
        assert all(torch.equal(value, same[name]) for name, value in values.items())
        assert peak <= MOST * state, f"{architecture}: {peak / state:.2f}"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", SHORT)
def test_shards_have_the_bits_and_need_little_more(
    ranks: RankPool, architecture: str, engine: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    check(ranks, architecture, engine)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name not in SHORT])
def test_every_architecture_has_them(ranks: RankPool, architecture: str, engine: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    check(ranks, architecture, engine)


def test_a_rank_without_memory_says_so_and_tries_no_whole_model() -> None:
    tries = []

    def make_model() -> None:
        tries.append(1)
        raise MemoryError("cannot allocate 7 GiB")

    trial = make_trial({"zero_stage": 3}, workload={"model": "gpt"})
    assert builds_sharded(trial)
    workload: Any = SimpleNamespace(make_model=make_model)
    with pytest.raises(MemoryError, match="7 GiB"):
        engines.make_model(trial, workload, Instruments(), torch.device("cpu"))
    assert tries == [1]


def test_code_that_needs_whole_values_is_refused_with_the_remedy(ranks: RankPool) -> None:
    trial = make_trial(
        {"zero_stage": 3, "build": "sharded"}, workload={"model": "tests.worker.building:Copies"}
    )
    with pytest.raises((UsageError, AssertionError), match="set build: whole"):
        ranks.run(2, "tests.worker.building:build", trial.model_dump(mode="json"))
