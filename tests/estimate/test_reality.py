"""The simulated peak is the real one, to the byte: between operators, on every rank of 2 and of 4."""

from typing import Any

import pytest

from tests.engine.covering import covering
from tests.engine.lattice import CHOICES, EVERY_ROW
from tests.estimate.conftest import COLLECTIVES, Simulate
from zbench.estimate.simulate import MICRO_BATCHES
from zbench.spec.trial import TrialSpec, accumulation
from zbench.testing.ranks import RankPool

AXES: dict[str, Any] = {
    "row": EVERY_ROW,
    "world_size": [2, 4],
    "model": [
        {"model": "gpt", "options": {"layers": 2, "width": 32, "heads": 2}, "sequence_length": 24},
        {"model": "mlp", "options": {"layers": 3, "hidden": 48}, "sequence_length": 16},
        {
            "model": "gpt",
            "options": {"layers": 4, "width": 16, "heads": 2, "vocabulary": 11, "tied_head": True},
            "sequence_length": 40,
            "activation_checkpointing": True,
        },
        {
            "model": "gpt",
            "options": {"layers": 2, "width": 32, "heads": 2},
            "sequence_length": 24,
            "activation_checkpointing": "selective",
            "loss_chunks": 3,
        },
    ],
    **CHOICES,
}
HAVE_SCRATCH = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    "aten.addmm.default",
    "aten.mm.default",
    "aten.native_layer_norm_backward.default",
    COLLECTIVES,
    "fsdp.chunk_cat.default",
}
"""Operators that allocate more than SMALL and free it within themselves: a simulation cannot see this."""
SMALL = 1024
LOSS = 4
"""Bytes of a micro-batch's loss."""
POINTS = covering(AXES, 2, seed=5)
SHORT = 4


def trial_of(point: dict[str, Any]) -> TrialSpec:
    """Return the trial of one point of the lattice."""
    engine: dict[str, Any] = dict(point["row"])
    for axis in CHOICES:
        engine |= point[axis]
    backwards = engine.pop("backwards", 1)
    workload = {**point["model"], "backwards_per_step": backwards, "data": {"synthetic": True}}
    return TrialSpec.model_validate(
        {"workload": workload, "run": {"world_size": point["world_size"]}, "engine": engine}
    )


def check(ranks: RankPool, simulate: Simulate, trial: TrialSpec, *, apart: int = 0) -> None:
    """Compare the simulation of every rank with the count of torch's allocator on it.

    apart: bytes by which the real rank may hold more between operators, beside the losses of micro-batches
    that are not simulated.
    """
    backwards = accumulation(trial.engine, trial.workload).backwards
    apart += LOSS * max(0, backwards - MICRO_BATCHES)
    real = ranks.run(trial.run.world_size, "tests.estimate.conftest:measure", trial.model_dump(mode="json"))
    for rank, measured in enumerate(real):
        step = simulate(trial, rank)
        simulated, scratch = step.peak, measured["scratch"]
        where = f"on rank {rank} of {trial.engine.model_dump(exclude_defaults=True)}"
        assert step.engine_bytes == measured["held"], f"held {where}"
        assert 0 <= measured["between"] - simulated <= apart, f"between operators {where}"
        assert 0 <= measured["outside"] - simulated <= max([apart, *scratch.values()]), where
        large = {name for name, size in scratch.items() if size > SMALL}
        assert large <= HAVE_SCRATCH, f"operators with scratch: {scratch}"
        if trial.run.world_size == 4:
            break  # the other ranks are those of the case of 2


@pytest.mark.parametrize("k", [0, *(pytest.param(k, marks=pytest.mark.check) for k in range(1, SHORT))])
def test_the_peak_is_the_allocators_to_the_byte(ranks: RankPool, simulate: Simulate, k: int) -> None:
    check(ranks, simulate, trial_of(POINTS[k]))


@pytest.mark.check
def test_gradients_that_are_added_up_on_the_host_are_not_on_the_device(simulate: Simulate) -> None:
    first = {axis: values[0] for axis, values in AXES.items()}
    for offload in ("none", "cpu"):
        row = {"zero_stage": 1, "offload_optimizer": offload}
        point = {**first, "row": row, "accumulation": {"gradient_accumulation_steps": 3}}
        held = simulate(trial_of(point)).engine_bytes
        assert ("gradients" in held) == (offload == "none")
        assert ("host_gradients" in held) == (offload == "cpu")


@pytest.mark.soak
@pytest.mark.parametrize("k", range(SHORT, len(POINTS)))
def test_the_peak_of_every_pair_is_the_allocators(ranks: RankPool, simulate: Simulate, k: int) -> None:
    check(ranks, simulate, trial_of(POINTS[k]))
