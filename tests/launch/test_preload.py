"""What the warm server loads ahead: slow libraries that its trials need, and no others."""

from typing import Any

import pytest

from tests.making import make_trial
from zbench.launch import preload
from zbench.launch.jobs import DEFAULT_TARGETS, targets_for
from zbench.launch.preload import MODULES, load

DYNAMO = "torch._dynamo"


def loaded(*varied: str, workload: dict[str, Any] | None = None, **engine: Any) -> tuple[str, ...]:
    return targets_for([make_trial(), make_trial(engine, workload=workload)], varied).modules


def test_transformers_is_loaded_once_for_all_trials_that_need_it() -> None:
    for model in ("hf:gpt2", "zbench.workloads.zoo:build"):
        modules = loaded(workload={"model": model})
        assert modules[: len(MODULES)] == MODULES  # the memory shim stays before torch
        assert "transformers.modeling_utils" in modules
    assert "transformers.modeling_utils" not in loaded(workload={"model": "my_module:make_model"})


def test_the_compiler_is_loaded_where_a_trial_compiles() -> None:
    assert "torch._inductor.compile_fx" in loaded(zero_stage=1, compile="inductor")
    assert "torch._inductor.compile_fx" in loaded("engine.compile")
    assert "torch._inductor.compile_fx" not in loaded(zero_stage=1)


def test_dynamo_is_loaded_where_torch_would_import_it_in_every_rank() -> None:
    assert loaded(zero_stage=2) == MODULES
    assert DEFAULT_TARGETS.modules == (*MODULES, DYNAMO), "of trials that nobody knows yet"
    assert DYNAMO in loaded(engine="ddp")
    assert DYNAMO in loaded(zero_stage=1, compile="aot_eager")
    assert DYNAMO in loaded(workload={"model": "my_module:make_model"})
    assert DYNAMO in loaded(workload={"activation_checkpointing": True})


def test_what_an_engine_imports_in_every_rank_is_loaded_for_its_trials() -> None:
    library = "torch.distributed.optim"
    assert library in loaded(engine="zero_redundancy", zero_stage=1)
    assert library in loaded("engine.engine"), "a search may try it"
    assert library not in loaded(engine="ddp")


@pytest.mark.parametrize("key", ["engine", "engine.engine", "workload.model", "activation_checkpointing"])
def test_what_a_search_changes_counts_as_used(key: str) -> None:
    assert DYNAMO in loaded(key)
    assert DYNAMO not in loaded("zero_stage")


def test_a_server_of_many_trials_moves_its_memory_to_huge_pages() -> None:
    once, often = make_trial(repeats=1), make_trial(repeats=12)
    assert not targets_for([once] * 11).many
    assert targets_for([once] * 12).many
    assert targets_for([often]).many
    assert targets_for([once], ["zero_stage"]).many, "a search tries more points than anyone knows"
    assert load((preload.HUGE_PAGES,)) == []


def test_what_cannot_be_loaded_or_called_is_told() -> None:
    assert load(("json", "json:dumps", "json:nothing", "no.such.module")) == [
        "json:dumps: TypeError: dumps() missing 1 required positional argument: 'obj'",
        "json:nothing: AttributeError: module 'json' has no attribute 'nothing'",
        "no.such.module: ModuleNotFoundError: No module named 'no'",
    ]
