"""What memory is for does not depend on the stage: what the model allocates is never the engine's."""

from pathlib import Path
from typing import Any

import pytest

from zbench.estimate.ledger import ACTIVATIONS
from zbench.estimate.simulate import simulate
from zbench.spec.trial import TrialSpec

MODELS: list[dict[str, Any]] = [
    {"model": "mlp", "options": {"layers": 3, "hidden": 48}, "sequence_length": 16},
    {"model": "gpt", "options": {"layers": 2, "width": 32, "heads": 2}, "sequence_length": 24},
    {"model": "hf:gpt2", "options": {"n_layer": 2, "n_embd": 32, "n_head": 2}, "sequence_length": 24},
]


def activations(model: dict[str, Any], **engine: Any) -> int:
    """Return the bytes of activations that one step allocates."""
    trial = {"workload": {**model, "data": {"synthetic": True}}, "run": {"world_size": 4}, "engine": engine}
    step = simulate(TrialSpec.model_validate(trial), Path.cwd())
    ledger = step.ledger
    return sum(
        each.nbytes
        for each in ledger.allocations
        if each.born > step.begin and ledger.category(each) == ACTIVATIONS
    )


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["model"])
def test_every_stage_has_the_same_activations(model: dict[str, Any]) -> None:
    plain = activations(model)
    assert plain > 0
    for engine in (
        {"zero_stage": 1},
        {"zero_stage": 2, "offload_optimizer": "cpu"},
        {"zero_stage": 3, "param_persistence_threshold": 0},
    ):
        assert activations(model, **engine) == plain, engine
