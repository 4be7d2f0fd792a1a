"""The space holds each computation once, and never draws a point that cannot exist."""

import optuna
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec
from zbench.tune.space import Space, point_key

from .fakes import small_sweep

CONDITIONAL = {
    "zero_stage": [0, 1, 2, 3],
    "offload_optimizer": ["none", "cpu"],
    "offload_ratio": [0.5, 1.0],
    "prefetch_bucket_size": [1000, 10_000, 100_000],
    "overlap_comm": [True, False],
}


def ranged() -> SweepSpec:
    return small_sweep(
        axes={
            "offload_optimizer": ["none", "cpu"],
            "reduce_bucket_size": {"low": 1e4, "high": 1e8, "log": True},
            "offload_ratio": {"low": 0.25, "high": 1.0, "when": {"offload_optimizer": "cpu"}},
        },
        engine={"engine": "mine:build", "zero_stage": 2},
    )


def test_points_are_distinct_and_stand_for_the_whole_grid() -> None:
    sweep = small_sweep(axes=CONDITIONAL, engine={"engine": "mine:build"})
    space = Space(sweep)
    points = space.points() or []
    trials = [space.trial(point) for point in points]
    assert all(isinstance(trial, TrialSpec) for trial in trials)
    assert len({trial.trial_id for trial in trials}) == len(points)
    # stage 0: 1 offload; 1, 2: none or cpu x 2 ratios; 3: the same x 3 prefetch sizes; all x overlap
    assert len(points) == 2 * (1 + 3 + 3 + 9)
    for trial in expand(sweep).trials:
        point = space.canonical(trial.axes)
        assert point in points
        assert space.canonical(point) == point


def test_an_axis_without_effect_keeps_one_value() -> None:
    space = Space(small_sweep(axes={**CONDITIONAL, "prefetch_bucket_size": [7_000, 70_000]}))
    point = space.canonical(
        {"zero_stage": 1, "offload_optimizer": "none", "offload_ratio": 0.5, "overlap_comm": True}
    )
    assert "offload_ratio" not in point
    trial = space.trial({**point, "prefetch_bucket_size": 7_000})
    assert isinstance(trial, TrialSpec)
    assert trial.engine.offload_ratio == 1.0
    stage_one = [p for p in space.points() or () if p["zero_stage"] == 1]
    assert {p["prefetch_bucket_size"] for p in stage_one} == {7_000}, "5e6, the default, is not on the axis"


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31 - 1))
def test_what_is_drawn_can_run_and_encodes_back(seed: int) -> None:
    space = _SPACES[seed % 2]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    trial, point = space.draw(study)
    assert space.canonical(point) == point
    assert space.can_run(point)
    encoded = space.encode(point)
    assert encoded is not None
    assert encoded[0].items() <= trial.params.items()
    assert ("offload_ratio" in encoded[0]) == (point.get("offload_optimizer") == "cpu")


def test_sizes_are_drawn_on_a_logarithmic_scale() -> None:
    space = Space(ranged())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    sizes = [space.draw(study)[1]["reduce_bucket_size"] for _ in range(400)]
    assert all(isinstance(size, int) and 10**4 <= size <= 10**8 for size in sizes)
    assert 0.4 < sum(size < 10**6 for size in sizes) / 400 < 0.6, (
        "half of the draws lie below the middle power"
    )
    assert space.points() is None


def test_excluded_and_impossible_points_say_why() -> None:
    sweep = small_sweep(exclude=[{"zero_stage": 2}])
    space = Space(sweep)
    excluded = space.trial({"zero_stage": 2, "offload_optimizer": "none", "reduce_bucket_size": 10_000})
    assert isinstance(excluded, InvalidTrial)
    assert excluded.reason == "excluded by the sweep file"
    impossible = space.trial({"zero_stage": 0, "offload_optimizer": "cpu", "reduce_bucket_size": 10_000})
    assert isinstance(impossible, InvalidTrial)
    assert "set zero_stage: 1, 2 or 3" in impossible.reason
    assert {point["zero_stage"] for point in space.points() or ()} == {0, 1}


def test_included_points_need_not_lie_on_the_axes() -> None:
    space = Space(small_sweep(include=[{"zero_stage": 1, "overlap_comm": False}]))
    (point,) = space.included
    trial = space.trial(point)
    assert isinstance(trial, TrialSpec)
    assert not trial.engine.overlap_comm
    assert space.encode(point) is None, "a model cannot learn from keys that are no axes"


def test_an_axis_with_a_condition_is_varied_where_that_holds() -> None:
    ratio = {"values": [0.5, 1.0], "when": {"offload_optimizer": "cpu"}}
    axes = {"offload_optimizer": ["none", "cpu"], "offload_ratio": ratio, "overlap_comm": [True, False]}
    space = Space(small_sweep(axes=axes, engine={"engine": "mine:build", "zero_stage": 1}))
    assert space.points() == [
        {"offload_optimizer": "none", "overlap_comm": True},
        {"offload_optimizer": "none", "overlap_comm": False},
        {"offload_optimizer": "cpu", "offload_ratio": 0.5, "overlap_comm": True},
        {"offload_optimizer": "cpu", "offload_ratio": 0.5, "overlap_comm": False},
        {"offload_optimizer": "cpu", "offload_ratio": 1.0, "overlap_comm": True},
        {"offload_optimizer": "cpu", "offload_ratio": 1.0, "overlap_comm": False},
    ]


def test_a_taken_point_is_not_drawn_again() -> None:
    space = Space(small_sweep(axes={"zero_stage": [0, 1]}))
    taken = point_key({"zero_stage": 0})
    assert all(space.random_point(seed, {taken}) == {"zero_stage": 1} for seed in range(5))
    assert space.random_point(0, {taken, point_key({"zero_stage": 1})}) is None


_SPACES = (Space(small_sweep(axes=CONDITIONAL, engine={"engine": "mine:build"})), Space(ranged()))
