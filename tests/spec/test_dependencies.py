"""The table of keys that act only beside others names real keys, and refuses exactly what does not act."""

import pytest

from zbench.spec.combinations import DEPENDENCIES, Dependency, acts, dependency_of, refusals
from zbench.spec.engine import EngineSpec
from zbench.spec.keys import canonical_value, known_paths

REFUSED = [one for one in DEPENDENCIES if one.refusal is not None]


@pytest.mark.parametrize("dependency", DEPENDENCIES, ids=lambda d: d.key[-1])
def test_keys_and_values_exist(dependency: Dependency) -> None:
    assert {dependency.key, dependency.on} <= set(known_paths())
    assert all(canonical_value(dependency.on, value) == value for value in dependency.values)
    assert dependency_of(dependency.key) is dependency


@pytest.mark.parametrize(
    ("key", "stages"),
    [
        ("offload_optimizer", {1, 2, 3}),
        ("shard_group_size", {1, 2, 3}),
        ("allgather_bucket_size", {1, 2, 3}),
        ("compile", {1}),
        ("offload_param", {3}),
        ("leaf_modules", {3}),
        ("prefetch_bucket_size", {3}),
        ("param_persistence_threshold", {3}),
        ("reduce_bucket_size", {0, 1, 2, 3}),
    ],
)
def test_a_key_acts_at_the_stages_that_shard_what_it_is_about(key: str, stages: set[int]) -> None:
    engines = [EngineSpec.model_validate({"zero_stage": stage}) for stage in range(4)]
    assert {engine.zero_stage for engine in engines if acts(engine, ("engine", key))} == stages


def test_defaults_are_never_refused_and_several_keys_without_effect_are_all_found() -> None:
    for stage in (0, 1, 2, 3):
        assert list(refusals(EngineSpec.model_validate({"zero_stage": stage}))) == []
    assert dependency_of(("engine", "gradient_clipping")) is None
    spec = EngineSpec.model_validate({"offload_optimizer": "cpu", "offload_param": "cpu"})
    assert [key for key, _ in refusals(spec)] == ["engine.offload_param", "engine.offload_optimizer"]


@pytest.mark.parametrize("dependency", REFUSED, ids=lambda d: d.key[-1])
def test_a_refusal_names_its_key_and_both_ways_out(dependency: Dependency) -> None:
    assert dependency.refusal is not None
    assert f"{dependency.on[-1]}:" in dependency.refusal
    assert f"{dependency.key[-1]}:" in dependency.refusal
