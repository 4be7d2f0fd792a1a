"""Whatever key a sweep sets, each export differs by it or names it: nothing is left out unsaid."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.making import NEEDED, OTHER
from zbench.spec.combinations import acts
from zbench.spec.engine import EngineSpec, OptimizerSpec
from zbench.spec.expand import conflict
from zbench.spec.foreign.accelerate import from_accelerate
from zbench.spec.foreign.deepspeed import from_deepspeed
from zbench.spec.foreign.reading import Imported
from zbench.spec.foreign.trainer import from_training_args
from zbench.spec.targets import TARGETS
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec

NOT_THE_ENGINES = {"engine", "engine_python"}
"""Keys that say who trains: an export is for another."""

WORKLOAD = {
    "micro_batch_size": 7,
    "backwards_per_step": 3,
    "activation_checkpointing": True,
    "offload_activations": True,
    "loss_chunks": 2,
}


BASES: dict[str, dict[str, Any]] = {
    "stage 3": {"zero_stage": 3}, "stage 0": {"zero_stage": 0}, "fsdp2": {"engine": "fsdp2", "zero_stage": 3},
}  # fmt: skip


def trial(engine: dict[str, Any], workload: dict[str, Any]) -> TrialSpec:
    written = {key: value for key, value in engine.items() if "." not in key}
    written["optimizer"] = {key.partition(".")[2]: value for key, value in engine.items() if "." in key}
    run = {"world_size": 4, "device": "cuda"}
    return TrialSpec.model_validate({"engine": written, "workload": workload, "run": run, "axes": {}})


def exported(target: str, engine: dict[str, Any], **workload: Any) -> str:
    """Return text and notes, without the trial's ID."""
    trial_spec = trial(engine, workload)
    export = TARGETS[target](trial_spec)
    return json.dumps([export.text, export.notes]).replace(trial_spec.trial_id, "ID")


def test_every_key_has_a_value_to_try() -> None:
    keys = {key.partition(".")[0] for key in OTHER}
    assert keys == EngineSpec.model_fields.keys() - NOT_THE_ENGINES
    assert {key.partition(".")[2] for key in OTHER if "." in key} == OptimizerSpec.model_fields.keys()
    assert WORKLOAD.keys() < WorkloadSpec.model_fields.keys()


def is_legal(engine: dict[str, Any]) -> bool:
    trial_spec = trial(engine, {})
    broken = conflict(trial_spec.engine, trial_spec.run, trial_spec.workload)
    return broken is None or "is not installed" in broken[1]


@pytest.mark.parametrize("key", OTHER)
def test_a_key_changes_an_export_or_is_named(key: str) -> None:
    tried = 0
    for base in BASES.values():
        before = base | NEEDED.get(key, {})
        after = before | {key: OTHER[key]}
        if (
            before != after
            and is_legal(before)
            and is_legal(after)
            and acts(trial(after, {}).engine, ("engine", *key.split(".")))
        ):
            tried += 1
            for target in TARGETS:
                assert exported(target, after) != exported(target, before), (target, before)
    assert tried, "no base takes the key"


@pytest.mark.parametrize("key", WORKLOAD)
@pytest.mark.parametrize("target", TARGETS)
def test_what_the_workload_sets_changes_an_export_or_is_named(target: str, key: str) -> None:
    for base in BASES.values():
        assert exported(target, base, **{key: WORKLOAD[key]}) != exported(target, base), base


def imported(target: str, text: str) -> EngineSpec:
    if target == "accelerate":
        translated = from_accelerate(YAML(typ="safe").load(text), Path())
    else:
        translated = {"deepspeed": from_deepspeed, "hf-trainer": of_trainer}[target](json.loads(text))
    return EngineSpec.model_validate(translated.document["engine"])


def of_trainer(arguments: dict[str, Any]) -> Imported:
    return from_training_args(arguments, Path())


@pytest.mark.parametrize("key", sorted(OTHER.keys() - {"ds_config"}))
@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "hf-trainer"])
def test_what_is_carried_comes_back(target: str, key: str) -> None:
    for base in (BASES["stage 3"], BASES["stage 0"]):
        engine = base | NEEDED.get(key, {}) | {key: OTHER[key]}
        trial_spec = trial(engine, {})
        if not is_legal(engine) or not acts(trial_spec.engine, ("engine", *key.split("."))):
            continue
        export = TARGETS[target](trial_spec)
        back = imported(target, export.text)
        if not any(
            f"engine.{key}" in note or f"engine.{key.partition('.')[0]}" in note for note in export.notes
        ):
            assert value(back, key) == value(trial_spec.engine, key), (base, export.text)


def value(engine: EngineSpec, key: str) -> object:
    for name in key.split("."):
        engine = getattr(engine, name)
    return engine
