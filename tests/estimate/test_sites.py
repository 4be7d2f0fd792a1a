"""The category of memory does not depend on the stage: the model's allocations are never the engine's."""

from pathlib import Path
from typing import Any

import pytest

from zbench.estimate import ledger
from zbench.estimate.ledger import ACTIVATIONS
from zbench.estimate.simulate import Step, simulate
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
    return sum(
        each.nbytes
        for each in step.ledger.allocations
        if each.born > step.begin and step.ledger.category(each) == ACTIVATIONS
    )


def check_categories(step: Step, names: list[str]) -> None:
    """Check that the ledger and the engine name the same bytes after the step, by category."""
    for host, prefix in ((False, ""), (True, "host_")):
        held = step.ledger.by_category(step.end, host=host)
        for name in names:
            size = step.engine_bytes.get(f"{prefix}{name}", 0)
            assert abs(held.get(name, 0) - size) <= 256, f"{prefix}{name}"


@pytest.mark.parametrize(
    "model",
    [MODELS[0], *(pytest.param(model, marks=pytest.mark.check) for model in MODELS[1:])],
    ids=lambda model: model["model"],
)
def test_every_stage_has_the_same_activations(model: dict[str, Any]) -> None:
    plain = activations(model)
    assert plain > 0
    for engine in (
        {"zero_stage": 1},
        {"zero_stage": 2, "offload_optimizer": "cpu"},
        {"zero_stage": 3, "param_persistence_threshold": 0},
    ):
        assert activations(model, **engine) == plain, engine


@pytest.mark.parametrize(
    ("root", "place"),
    [
        *((ledger._ENGINE, place) for place in (*ledger._TABLE, *ledger._ON_BEHALF)),
        *((ledger._TORCH, place) for place in ledger._TORCHS_TABLE),
    ],
)
def test_the_places_that_have_categories_exist(root: str, place: str) -> None:
    path, _, function = place.partition(":")
    file = Path(root) / path
    assert file.exists()
    assert not function or f"def {function}(" in file.read_text()


@pytest.mark.parametrize(
    "engine",
    [
        {"zero_stage": 2, "offload_optimizer": "cpu", "dtype": "bfloat16"},
        {"zero_stage": 3, "dtype": "bfloat16"},
    ],
)
def test_between_steps_the_categories_are_the_engines_own(engine: dict[str, Any]) -> None:
    trial = {
        "workload": {**MODELS[1], "data": {"synthetic": True}},
        "run": {"world_size": 4},
        "engine": engine,
    }
    step = simulate(TrialSpec.model_validate(trial), Path.cwd())
    check_categories(step, ["parameters", "master", "moments", "gradients"])
