from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.deepspeed import to_deepspeed
from zbench.spec.expand import expand
from zbench.spec.foreign.deepspeed import from_deepspeed
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec

CONFIG: dict[str, Any] = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": 2e8,
    },
}


def imported(config: dict[str, Any]) -> TrialSpec:
    return expand(sweep_from_mapping(from_deepspeed(config).document, environ={})).trials[0]


def test_steps_that_the_script_ends_are_unmanaged_here() -> None:
    config = {**CONFIG, "managed_gradient_accumulation": False}
    trial = imported(config)
    assert (trial.engine.accumulation_mode, trial.engine.gradient_accumulation_steps) == ("unmanaged", 1)
    assert trial.workload.backwards_per_step == 4
    assert trial.run.world_size == 2
    texts = [note.text for note in from_deepspeed(config).notes if note.effect == "training"]
    assert any(text.startswith("managed_gradient_accumulation: false") for text in texts)
    assert imported({**config, "managed_gradient_accumulation": True}) == imported(CONFIG)
    with pytest.raises(UsageError, match="managed_gradient_accumulation"):
        from_deepspeed({**config, "managed_gradient_accumulation": "perhaps"})


@pytest.mark.parametrize(("stage", "overlaps"), [(1, False), (2, True)])
def test_an_unmanaged_export_is_one_that_deepspeed_takes(stage: int, overlaps: bool) -> None:
    engine = {"zero_stage": stage, "accumulation_mode": "unmanaged"}
    export = to_deepspeed(expand(SweepSpec.model_validate({"engine": engine})).trials[0])
    assert export.document["managed_gradient_accumulation"] is False
    assert export.document["zero_optimization"]["overlap_comm"] is overlaps
    assert any("overlap_comm" in note for note in export.notes) is not overlaps
    assert imported(export.document).engine.accumulation_mode == "unmanaged"


def test_export_names_what_the_training_script_must_do() -> None:
    constant = SweepSpec.model_validate({"workload": {"global_batch_size": 8}, "run": {"world_size": 2}})
    (note,) = to_deepspeed(expand(constant).trials[0]).notes
    assert "8 is for 2 ranks; for another number, change gradient_accumulation_steps (2)" in note
