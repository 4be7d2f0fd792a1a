import itertools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zbench.errors import SpecError
from zbench.gpus import MULTI_RANK, Gpu
from zbench.spec.base_rows import rows_apart
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import Points, expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.run import VerifySpec
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "zero_stage": st.sampled_from([0, 1, 2, 3]),
    "engine.overlap_comm": st.booleans(),
    "lr": st.floats(0, 1),
    "reduce_bucket_size": st.integers(1, 10**9),
    "run.world_size": st.integers(1, 8),
    "sequence_length": st.integers(1, 4096),
    "dtype": st.sampled_from(["float32", "bfloat16"]),
    "options.width": st.integers(1, 64),
}


@st.composite
def axes(draw: st.DrawFn) -> dict[str, list[Any]]:
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=4))
    return {key: draw(st.lists(VALUES[key], min_size=1, max_size=3, unique=True)) for key in keys}


@settings(max_examples=50)
@given(axes())
def test_every_point_of_the_product_appears_once_in_order(axes: dict[str, list[Any]]) -> None:
    sweep = SweepSpec(axes=axes)
    expansion = expand(sweep)
    expected = [list(point) for point in itertools.product(*axes.values())]
    assert [list(trial.axes.values()) for trial in expansion.trials] == expected
    assert not expansion.invalid
    assert len({trial.trial_id for trial in expansion.trials}) == len(expected)
    assert expand(sweep) == expansion


@settings(max_examples=40)
@given(axes(), st.data())
def test_excluding_removes_what_matches_and_nothing_else(
    axes: dict[str, list[Any]], data: st.DataObject
) -> None:
    assume(axes)
    key = data.draw(st.sampled_from(sorted(axes)))
    value = data.draw(st.sampled_from(axes[key]))
    every = expand(SweepSpec(axes=axes)).trials
    some = expand(SweepSpec(axes=axes, exclude=[{key: value}]))
    index = list(axes).index(key)
    assert some.trials == [trial for trial in every if list(trial.axes.values())[index] != value]
    assert some.excluded == len(every) - len(some.trials)


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("zero_stage", 2, lambda trial: trial.engine.zero_stage),
        ("optimizer.lr", 0.5, lambda trial: trial.engine.optimizer.lr),
        ("data.text", "a.txt", lambda trial: trial.workload.data.text),
        ("param_groups.layers.0.*.lr", 0.1, lambda trial: trial.engine.param_groups["layers.0.*"].lr),
    ],
)
def test_an_axis_may_name_any_key(key: str, value: Any, read: Any) -> None:
    assert read(expand(SweepSpec(axes={key: [value]})).trials[0]) == value
    with pytest.raises(SpecError, match="unknown key 'workload'"):
        expand(SweepSpec(axes={"workload": [{}]}))


def test_combinations_that_cannot_exist_are_listed_with_the_reason() -> None:
    expansion = expand(SweepSpec(axes={"zero_stage": [0, 3], "offload_param": ["none", "cpu"]}))
    assert len(expansion.trials) == 3
    (invalid,) = expansion.invalid
    assert invalid.axes == {"zero_stage": 0, "offload_param": "cpu"}
    assert "set zero_stage: 3" in invalid.reason
    assert invalid.key == "engine.offload_param"
    assert invalid.config["engine"]["offload_param"] == "cpu"


def test_nccl_adds_only_where_each_rank_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless NCCL is asked to have several ranks on one; a simulation needs none."""
    monkeypatch.setattr("zbench.spec.run.visible_gpus", lambda: [Gpu("a GPU")] * 2)
    sweep = SweepSpec.model_validate({"run": {"world_size": 4}, "axes": {"reduction": ["auto", "backend"]}})
    (point,) = expand(sweep).invalid
    assert (point.axes, point.key) == ({"reduction": "backend"}, "engine.reduction")
    assert "expected a GPU for each of 4 ranks" in point.reason
    assert "found 2; set run.world_size: 2, reduction: auto or rank_order" in point.reason
    assert Points(sweep).trial({"reduction": "backend"}) == point
    assert not expand(sweep, simulated=True).invalid
    alone = {"run": {"world_size": 4}, "engine": {"reduction": "backend"}}
    assert sweep_from_mapping(alone, environ={}, simulated=True).engine.reduction == "backend"
    with pytest.raises(SpecError, match="expected a GPU for each of 4 ranks"):
        sweep_from_mapping(alone, environ={})
    monkeypatch.setenv(MULTI_RANK, "1")
    assert not expand(sweep).invalid


def test_included_points_have_the_base_and_are_never_excluded() -> None:
    sweep = SweepSpec(
        engine=EngineSpec(gradient_clipping=1.0),
        axes={"zero_stage": [1, 2]},
        exclude=[{"zero_stage": [1, 3], "gradient_clipping": 1.0}],
        include=[{"zero_stage": 3, "lr": 0.1}, {"zero_stage": 2}],
    )
    expansion = expand(sweep)
    assert [trial.axes for trial in expansion.trials] == [{"zero_stage": 2}, {"zero_stage": 3, "lr": 0.1}]
    assert expansion.trials[1].engine.gradient_clipping == 1.0
    assert (expansion.excluded, expansion.duplicates) == (1, 1)


COMMAND: dict[str, Any] = {
    "command": "python train.py {zero_stage} {lr}",
    "checkpoint": "{output}/model",
    "step_times": {"jsonl": "steps"},
}


def test_flags_of_a_script_are_axes_alone_and_together() -> None:
    values: list[Any] = [0, 0.5, 25, True, "cosine"]
    own = {**COMMAND, "parameters": {"x": 1, "amp": False, "model": "small"}}
    sweep = SweepSpec.model_validate(
        {
            "workload": own,
            "axes": {"x": values, "parameters": [{"amp": True, "model": "large"}, {"amp": False}]},
            "exclude": [{"x": [0.5, 25]}, {"parameters.model": "large", "x": 0}],
            "include": [{"x": 7, "parameters": {"amp": True}}],
        }
    )
    trials = expand(sweep).trials
    points = [tuple(trial.workload.parameters.values()) for trial in trials]
    assert [repr(point) for point in points] == [
        "(0, False, 'small')",
        "(True, True, 'large')",
        "(True, False, 'small')",
        "('cosine', True, 'large')",
        "('cosine', False, 'small')",
        "(7, True, 'small')",
    ]
    assert trials[1].axes == {"x": True, "parameters": {"amp": True, "model": "large"}}
    assert trials[1].verify.against == {}
    assert trials[1].base_row == {"x": 1, "amp": False, "parameters.model": "small"}


def test_a_conditional_axis_varies_only_where_it_applies() -> None:
    offload = {"values": ["none", "cpu"], "when": {"zero_stage": 3}}
    sweep = SweepSpec.model_validate({"axes": {"zero_stage": [1, 3], "offload_param": offload}})
    assert [trial.axes for trial in expand(sweep).trials] == [
        {"zero_stage": 1},
        {"zero_stage": 3, "offload_param": "none"},
        {"zero_stage": 3, "offload_param": "cpu"},
    ]


def test_any_point_of_a_range_is_a_trial() -> None:
    axes = {"reduce_bucket_size": {"low": "1e4", "high": "10M", "log": True}, "lr": {"low": 1e-5, "high": 1}}
    sweep = SweepSpec.model_validate({"search": {"method": "tpe"}, "axes": axes})
    with pytest.raises(SpecError, match="a range has no list of points"):
        expand(sweep)
    trial = Points(sweep).trial({"reduce_bucket_size": 12345, "lr": 0.5})
    assert isinstance(trial, TrialSpec)
    assert trial.engine.reduce_bucket_size == 12345


def test_values_that_python_holds_equal_are_points_of_their_own() -> None:
    values = [1, True, 1.0, "1", [1], {"a": 1}, {"a": True}, None]
    expansion = expand(SweepSpec(workload=WorkloadSpec(model="mine:build"), axes={"options.x": values}))
    assert [repr(trial.workload.options["x"]) for trial in expansion.trials] == [
        repr(value) for value in values
    ]
    assert expansion.duplicates == 0


def test_rows_of_one_global_batch_are_compared_with_the_first_micro_batch() -> None:
    document = {"workload": {"global_batch_size": 8}, "run": {"world_size": 2}}
    axes = {"micro_batch_size": [3, 1, 4], "accumulation_mode": ["micro_steps", "multi_backward"]}
    trials = expand(SweepSpec.model_validate(document | {"axes": axes})).trials
    rows = [trial.compared_row() for trial in trials]
    assert [trial.workload.micro_batch_size for trial in trials] == [1, 1, 4, 4]
    assert rows[:2] == [None, None]
    assert [row.trial_id for row in rows[2:]] == [trial.trial_id for trial in trials[:2]]
    assert rows_apart(trials[2]) == {"micro_batch_size": (4, 1)}
    alone = expand(SweepSpec.model_validate({"axes": {"micro_batch_size": [1, 2]}})).trials
    assert {trial.base_row for trial in alone} == {None}


def test_a_command_is_compared_with_its_base() -> None:
    axes = {"zero_stage": [0, 2], "lr": [1e-3, 0.5]}
    sweep = SweepSpec.model_validate({"workload": COMMAND, "axes": axes})
    base = {"zero_stage": 0}
    trials = expand(sweep).trials
    assert [trial.verify.against for trial in trials] == [{}, {}, base, base]
    assert [list(rows_apart(trial)) for trial in trials] == [[], ["lr"], [], ["lr"]]
    declared = expand(sweep.model_copy(update={"verify": VerifySpec(same_training=["lr"])})).trials
    assert [trial.verify.against for trial in declared][2:] == [base, {"zero_stage": 0, "lr": 1e-3}]
    assert not any(map(rows_apart, declared))
    named = sweep.model_copy(update={"verify": VerifySpec(against={"lr": 0.5})})
    assert [trial.held_against().engine.optimizer.lr for trial in expand(named).trials] == [0.5] * 4
    assert rows_apart(expand(named).trials[2]) == {"zero_stage": (2, 0)}
    unjudged = sweep.model_copy(update={"verify": VerifySpec(mode="off")})
    assert {trial.verify.against for trial in expand(unjudged).trials} == {None}
    offloaded = {"engine": EngineSpec(offload_param="cpu"), "axes": {"zero_stage": [3]}}
    (impossible,) = expand(sweep.model_copy(update=offloaded)).invalid
    assert "the run to compare it with is invalid" in impossible.reason


def combinations(points: list[dict[str, Any]], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    return {
        tuple(part) for point in points for part in itertools.combinations(sorted(point.items()), strength)
    }


def test_a_covering_sweep_runs_possible_points_with_every_pair() -> None:
    axes = {"zero_stage": [0, 1, 2, 3], "offload_optimizer": ["none", "cpu"], "overlap_comm": [True, False]}
    sweep = {"axes": axes | {"dtype": ["float32", "bfloat16"]}, "search": {"method": "covering"}}
    expansion = expand(sweep_from_mapping(sweep, environ={}))
    every = expand(sweep_from_mapping(sweep | {"search": {}}, environ={}))
    chosen, possible = ([trial.axes for trial in one.trials] for one in (expansion, every))
    assert combinations(chosen, 2) == combinations(possible, 2)
    assert len(chosen) < 14
    assert expansion.invalid == []


ENGINES = ["builtin", "ddp", "zero_redundancy", "fsdp2"]


@pytest.mark.parametrize("sweep", [{"axes": {"engine": ENGINES}}])
def test_an_engine_without_a_stage_takes_its_own(sweep: dict[str, Any]) -> None:
    trials = expand(sweep_from_mapping(sweep)).trials
    stages = {trial.engine.engine: trial.engine.zero_stage for trial in trials}
    assert stages == {"builtin": 0, "ddp": 0, "zero_redundancy": 1, "fsdp2": 3}


@pytest.mark.parametrize("sweep", [{"engine": {"zero_stage": 0}, "axes": {}}, {"axes": {"zero_stage": [0]}}])
def test_a_stage_that_is_given_is_never_replaced(sweep: dict[str, Any]) -> None:
    axes = {**sweep["axes"], "engine": ENGINES}
    trials = expand(sweep_from_mapping({**sweep, "axes": axes})).trials
    assert {trial.engine.engine for trial in trials} == {"builtin", "ddp"}
