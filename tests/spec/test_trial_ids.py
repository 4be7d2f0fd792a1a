"""Trial IDs never change: run directories, baselines and exports name trials by them."""

from typing import Any

import pytest

from tests.making import make_trial
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.run import VerifySpec

GOLDEN = ["3c2587bc56b3", "b0acccb67e53", "b09e5842bfa1", "db80561f6d5a"]


def test_trial_ids_are_what_they_were() -> None:
    sweep = sweep_from_mapping(
        {
            "name": "golden",
            "workload": {"model": "gpt", "preset": "nano", "micro_batch_size": 2},
            "run": {"world_size": 2, "repeats": 5, "timeout": "30s", "memory_limit": "2Gi"},
            "engine": {"gradient_clipping": 1.0, "optimizer": {"name": "adamw", "lr": 1e-3}},
            "axes": {"zero_stage": [0, 1, 2, 3]},
        },
        environ={},
    )
    assert [trial.trial_id for trial in expand(sweep).trials] == GOLDEN


def test_a_copy_with_other_keys_has_its_own_identity() -> None:
    (trial,) = expand(sweep_from_mapping({"name": "one"}, environ={})).trials
    engine = trial.engine.model_copy(update={"zero_stage": 3})
    assert trial.trial_id != trial.model_copy(update={"engine": engine}).trial_id
    assert trial.trial_id == trial.model_copy().trial_id


@pytest.mark.parametrize(
    ("engine", "other"),
    [
        ({"leaf_modules": (), "buffer_dtype": None, "optimizer": {"lr": 1e-3}}, False),
        ({"param_groups": {}}, False),
        ({"leaf_modules": ("Experts",)}, True),
        ({"buffer_dtype": "float32"}, True),
        ({"optimizer": {"lr": 1e-4}}, True),
    ],
)
def test_a_key_at_its_default_counts_for_no_identity(engine: dict[str, Any], other: bool) -> None:
    plain = make_trial({"zero_stage": 3})
    assert (make_trial({"zero_stage": 3, **engine}).trial_id != plain.trial_id) is other


def test_a_key_of_a_parameter_group_that_is_inherited_counts_for_none() -> None:
    short, long = ({"param_groups": {"bias": group}} for group in ({"lr": 0.1}, {"lr": 0.1, "eps": None}))
    assert make_trial(short).trial_id == make_trial(long).trial_id


def test_the_run_that_a_command_is_held_against_differs_by_what_is_named() -> None:
    engine = {"zero_stage": 2, "gradient_clipping": 1.0, "dtype": "bfloat16", "engine_python": "/other"}
    against = {"zero_stage": 1, "engine_python": None, "gradient_clipping": None, "reduce_bucket_size": 7}
    trial = make_trial(engine, workload={"command": "train"})
    held = trial.model_copy(update={"verify": VerifySpec(against=against)}).held_against()
    assert (held.engine.zero_stage, held.engine.reduce_bucket_size) == (1, 7)
    assert (held.engine.engine_python, held.engine.gradient_clipping) == (None, 0.0), "the defaults"
    assert held.engine.dtype == "bfloat16"
    assert held.verify.against is None
    assert trial.held_against() == trial
