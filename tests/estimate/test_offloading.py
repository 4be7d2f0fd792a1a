"""Offloaded activations: the simulated peak is the allocator's, and on a card they are in host memory."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.covering import covering
from tests.engine.lattice import CHOICES, EVERY_ROW
from tests.estimate.real import Simulate
from tests.estimate.test_reality import check
from tests.making import make_trial
from zbench.estimate.simulate import simulate as simulated_step
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import RankPool

MODEL = {"model": "gpt", "options": {"layers": 3, "width": 32, "heads": 2}, "sequence_length": 24}
TIED = {
    "model": "gpt",
    "options": {"layers": 4, "width": 16, "heads": 2, "vocabulary": 11, "tied_head": True},
    "sequence_length": 40,
}
AXES: dict[str, Any] = {
    "row": EVERY_ROW,
    "model": [MODEL, TIED],
    "checkpointing": [True, "selective", False],
    "chunks": [1, 3],
    "dtype": ["bfloat16", "float32"],
    **{axis: CHOICES[axis] for axis in ("accumulation", "overlap", "residents")},
}
POINTS = covering(AXES, 2, seed=7)
SHORT = 2
ENGINES: list[dict[str, Any]] = [
    {"zero_stage": 1},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    {"zero_stage": 3, "dtype": "bfloat16"},
]


def trial(engine: dict[str, Any], device: str = "cpu", **workload: Any) -> TrialSpec:
    return make_trial(
        engine, workload={**MODEL, "offload_activations": True, **workload}, world_size=2, device=device
    )


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_peak_with_offloaded_activations_is_the_allocators(
    ranks: RankPool, simulate: Simulate, engine: dict[str, Any], checkpointing: bool
) -> None:
    check(ranks, simulate, trial(engine, activation_checkpointing=checkpointing))


@pytest.mark.parametrize(
    "k", [pytest.param(k, marks=[pytest.mark.soak] if k >= SHORT else []) for k in range(len(POINTS))]
)
def test_the_peak_of_drawn_choices_is_the_allocators(ranks: RankPool, simulate: Simulate, k: int) -> None:
    point = POINTS[k]
    engine: dict[str, Any] = {"dtype": point["dtype"], **point["row"]}
    for axis in ("accumulation", "overlap", "residents"):
        engine |= point[axis]
    workload = {
        **point["model"],
        "activation_checkpointing": point["checkpointing"],
        "loss_chunks": point["chunks"],
        "backwards_per_step": engine.pop("backwards", 1),
    }
    check(ranks, simulate, trial(engine, **workload))


@pytest.mark.parametrize("engine", ENGINES)
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
