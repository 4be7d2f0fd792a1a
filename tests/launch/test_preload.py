"""What the warm server loads ahead: slow libraries of the models that are trained, and no others."""

from zbench.launch.jobs import DEFAULT_TARGETS, targets_for
from zbench.launch.preload import MODULES


def test_transformers_is_loaded_once_for_all_trials_that_need_it() -> None:
    assert targets_for({"gpt", "my_module:make_model"}) == DEFAULT_TARGETS
    for model in ("hf:gpt2", "zbench.workloads.zoo:build"):
        modules = targets_for({"gpt", model}).modules
        assert modules[: len(MODULES)] == MODULES  # the memory shim stays before torch
        assert "transformers.modeling_utils" in modules


def test_the_compiler_is_loaded_where_a_trial_compiles() -> None:
    assert "torch._inductor.compile_fx" in targets_for({"gpt"}, compiles=True).modules
    assert "torch._inductor.compile_fx" not in targets_for({"gpt"}).modules
