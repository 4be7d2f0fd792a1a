"""Points share what is equal, and each is the trial that it would be alone."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from zbench.spec.expand import expand
from zbench.spec.points import Points
from zbench.spec.sweep import AxisSpec, SweepSpec
from zbench.spec.trial import TrialSpec, config_id

from .plain_expansion import expand_plainly, trial_plainly

COMMAND = {
    "command": "python train.py {zero_stage} {lr}",
    "checkpoint": "{output}/model",
    "step_times": {"jsonl": "steps"},
}
SWEEPS: dict[str, dict[str, Any]] = {
    "invalid and excluded": {
        "axes": {
            "zero_stage": [0, 1, 2, 3],
            "offload_optimizer": ["none", "cpu"],
            "offload_schedule": {
                "values": ["after_backward", "speculative"],
                "when": {"offload_optimizer": "cpu"},
            },
            "run.world_size": [1, 2, 3],
            "shard_group_size": [None, 2],
        },
        "exclude": [
            {"zero_stage": 0, "run.world_size": [2, 3]},
            {"hosts": 7},
            {"evaluate_every": None, "lr": 5},
        ],
        "include": [{"zero_stage": 0, "run.world_size": 2, "lr": 0.5, "repeats": 9}, {"zero_stage": 1}],
    },
    "values that Python holds equal": {
        "workload": {"model": "mine:build"},
        "axes": {"options.x": [1, True, 1.0, "1", [1], {"a": 1}, {"a": True}, None], "lr": [0.0, 1, 1.5]},
        "exclude": [{"options.x": True}],
    },
    "blocks that are invalid": {
        "axes": {"data.dataset": [None, "mine:data"], "zero_stage": [0, 1], "evaluate_every": [None, 1]},
    },
    "a block and a key in it": {
        "axes": {
            "engine.optimizer": [{"name": "adam"}, {"lr": 0.5}],
            "lr": [0.1, 0.5],
            "param_groups.bias.lr": [1.0, 2.0],
        },
    },
    "accumulation that follows": {
        "workload": {"global_batch_size": 16},
        "run": {"world_size": 2},
        "axes": {
            "micro_batch_size": [1, 2, 3, 8],
            "accumulation_mode": ["micro_steps", "multi_backward"],
            "gradient_accumulation_steps": [1, 4],
        },
        "exclude": [{"gradient_accumulation_steps": 4, "micro_batch_size": 1}],
    },
    "a ds_config": {
        "engine": {"engine": "deepspeed"},
        "axes": {
            "engine.ds_config": [{"zero_optimization": {"stage": 2}}, {"scheduler": {"type": "x"}}, None],
            "zero_stage": [1, 2],
            "lr": [1e-3, 1e-4],
        },
    },
    "named environments": {
        "environments": {"old": "/old", "new": "/new"},
        "axes": {"engine_python": [None, "old", "new", "/other"], "zero_stage": [0, 1]},
    },
    "a command": {
        "workload": COMMAND,
        "axes": {"zero_stage": [0, 1, 2], "lr": [1e-3, 1e-4], "offload_param": ["none", "cpu"]},
    },
    "a command held against another": {
        "workload": COMMAND,
        "verify": {"against": {"zero_stage": 0}},
        "axes": {"zero_stage": [1, 2], "engine.engine": ["builtin", "ddp"]},
    },
    "a command that saves nothing": {
        "workload": {key: value for key, value in COMMAND.items() if key != "checkpoint"},
        "axes": {"zero_stage": [0, 1]},
    },
    "a command that is not judged": {
        "workload": COMMAND,
        "verify": {"mode": "off"},
        "axes": {"zero_stage": [0, 1]},
    },
    "groups of parameters": {
        "axes": {"param_groups.bias": [{"lr": 0.1}, {"frozen": True}], "param_groups": [{"x": {"lr": 1.0}}]},
    },
    "only an included point": {"include": [{"zero_stage": 2}, {"zero_stage": 2}]},
}


@pytest.mark.parametrize("name", SWEEPS)
def test_points_are_the_trials_that_they_would_be_alone(name: str) -> None:
    sweep = SweepSpec.model_validate(SWEEPS[name])
    found, expected = expand(sweep), expand_plainly(sweep)
    assert found == expected
    both: list[tuple[Any, Any]] = [
        *zip(found.trials, expected.trials, strict=True),
        *zip(found.invalid, expected.invalid, strict=True),
    ]
    for mine, theirs in both:
        assert mine.trial_id == theirs.trial_id
        assert json.dumps(mine.axes) == json.dumps(theirs.axes), "in the same order"
        assert _config(mine) == _config(theirs)
    assert all(trial.trial_id == config_id(trial.config()) for trial in found.trials)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "zero_stage": st.sampled_from([0, 1, 2, 3]),
    "offload_optimizer": st.sampled_from(["none", "cpu"]),
    "offload_ratio": st.sampled_from([0.5, 1.0, "auto"]),
    "engine.engine": st.sampled_from(["builtin", "ddp", "fsdp2", "nobody"]),
    "lr": st.floats(0, 1),
    "run.world_size": st.integers(1, 4),
    "steps": st.integers(1, 3),
    "backwards_per_step": st.integers(1, 2),
    "accumulation_mode": st.sampled_from(["micro_steps", "unmanaged"]),
    "micro_batch_size": st.integers(1, 3),
    "options.width": st.one_of(st.integers(0, 1), st.booleans(), st.none()),
}


@st.composite
def sweeps(draw: st.DrawFn) -> SweepSpec:
    """Draw a sweep of a few axes, with excluded and included points."""

    def part(most: int) -> dict[str, Any]:
        keys = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, min_size=1, max_size=most))
        return {key: draw(VALUES[key]) for key in keys}

    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=4))
    axes = {key: draw(st.lists(VALUES[key], min_size=1, max_size=3, unique_by=json.dumps)) for key in keys}
    document = {
        "axes": axes,
        "exclude": [part(2) for _ in range(draw(st.integers(0, 2)))],
        "include": [part(3) for _ in range(draw(st.integers(0, 2)))],
        "engine": {"gradient_clipping": 1.0},
    }
    return SweepSpec.model_validate(document)


@settings(max_examples=60, deadline=None)
@given(sweeps())
def test_any_sweep_is_what_its_points_are_alone(sweep: SweepSpec) -> None:
    assert expand(sweep) == expand_plainly(sweep)


@settings(max_examples=30, deadline=None)
@given(sweeps(), st.randoms())
def test_the_order_in_which_points_are_asked_for_changes_none(sweep: SweepSpec, random: Any) -> None:
    points = Points(sweep)
    wanted: list[Mapping[str, Any]] = [
        trial.axes for trial in expand(sweep.model_copy(update={"include": []})).trials
    ]
    random.shuffle(wanted)
    paths = {axis.key: axis.path for axis in points.axes}
    for point in wanted:
        assert points.trial(point) == trial_plainly(
            sweep, {paths[key]: value for key, value in point.items()}
        )


def test_a_point_of_no_axis_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match=r"no axis of the sweep: \['lr'\]"):
        Points(SweepSpec(axes={"zero_stage": [0, 1]})).trial({"zero_stage": 0, "lr": 1.0})


def test_a_trial_that_was_made_elsewhere_is_excluded_as_well() -> None:
    sweep = SweepSpec(axes={"zero_stage": [0, 1]}, exclude=[{"zero_stage": 0}])
    points = Points(sweep)
    made = [TrialSpec.model_validate(Points(sweep).trial({"zero_stage": n}).config()) for n in (0, 1)]
    assert [points.is_excluded(trial) for trial in made] == [True, False]
    assert not Points(SweepSpec()).is_excluded(made[0])


def test_trials_share_equal_blocks() -> None:
    sweep = SweepSpec(axes={"zero_stage": [0, 1], "micro_batch_size": [1, 2]})
    trials = expand(sweep).trials
    assert len({id(trial.workload) for trial in trials}) == len({id(trial.engine) for trial in trials}) == 2


def _config(trial: Any) -> dict[str, Any]:
    config: dict[str, Any] = trial.config() if isinstance(trial, TrialSpec) else trial.config
    return config


@pytest.mark.parametrize(
    "axis",
    [
        {},
        {"low": 1},
        {"high": 2},
        {"low": 1, "values": [1]},
        {"high": 2, "values": [1]},
        {"low": 1, "high": 2, "values": [1]},
    ],
)
def test_an_axis_is_a_list_or_a_whole_range(axis: dict[str, object]) -> None:
    assert AxisSpec.model_validate({"values": [1]}).values == [1]
    assert AxisSpec.model_validate({"low": 1, "high": 2}).low == 1
    with pytest.raises(ValidationError, match="expected either `values"):
        AxisSpec.model_validate(axis)
