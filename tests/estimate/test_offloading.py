"""Offloaded activations: the simulated peak is the allocator's, and on a card they are in host memory."""

from pathlib import Path
from typing import Any

import pytest

from tests.estimate.conftest import Simulate
from tests.estimate.test_reality import check
from tests.making import make_trial
from zbench.estimate.simulate import simulate as simulated_step
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import RankPool

MODEL = {"model": "gpt", "options": {"layers": 3, "width": 32, "heads": 2}, "sequence_length": 24}
ENGINES: list[dict[str, Any]] = [
    {"zero_stage": 1},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    {"zero_stage": 3, "dtype": "bfloat16"},
]


def trial(engine: dict[str, Any], device: str = "cpu", **workload: Any) -> TrialSpec:
    return make_trial(
        engine, workload={**MODEL, "offload_activations": True, **workload}, world_size=2, device=device
    )


@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.check)])
@pytest.mark.parametrize(
    "engine", [*ENGINES[:1], *(pytest.param(e, marks=pytest.mark.check) for e in ENGINES[1:])]
)
def test_the_peak_with_offloaded_activations_is_the_allocators(
    ranks: RankPool, simulate: Simulate, engine: dict[str, Any], checkpointing: bool
) -> None:
    check(ranks, simulate, trial(engine, activation_checkpointing=checkpointing))


@pytest.mark.check
@pytest.mark.parametrize("engine", [ENGINES[1], ENGINES[2]])
def test_on_a_card_activations_wait_in_host_memory(engine: dict[str, Any]) -> None:
    ledgers = []
    for offloads in (False, True):
        step = simulated_step(
            trial(engine, "cuda", offload_activations=offloads, micro_batch_size=8), Path.cwd()
        )
        ledgers.append((step.ledger.peak[False], step.ledger.peak[True], step.work.copied_bytes))
    (near, host, copied), (less, more, copied_more) = ledgers
    assert less < near
    assert copied_more - copied >= 2 * (near - less), "out in the forward, back in the backward"
    assert more - host >= near - less
