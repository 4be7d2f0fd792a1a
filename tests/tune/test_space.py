"""The space holds each computation once, never draws what cannot exist, and knows how unlike points are."""

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import Trial

from zbench.spec.axes import ValueRange
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec
from zbench.tune.space import Point, Space, is_scaled, place_in, point_key

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


def test_points_are_distinct_computations_and_can_all_run() -> None:
    space = Space(small_sweep(axes=CONDITIONAL, engine={"engine": "mine:build"}))
    points = space.points()
    assert points is not None
    trials = [space.trial(point) for point in points]
    assert all(isinstance(trial, TrialSpec) for trial in trials)
    assert len({trial.trial_id for trial in trials}) == len(points)
    # stage 0: 1 offload; 1, 2: none or cpu x 2 ratios; 3: the same x 3 prefetch sizes; all x overlap
    assert len(points) == 2 * (1 + 3 + 3 + 9)


def test_every_point_of_the_grid_has_a_canonical_point_of_the_space() -> None:
    sweep = small_sweep(axes=CONDITIONAL, engine={"engine": "mine:build"})
    space = Space(sweep)
    known = {point_key(point) for point in space.points() or ()}
    for trial in expand(sweep).trials:
        point = space.canonical(trial.axes)
        assert point_key(point) in known
        assert space.canonical(point) == point


def test_an_axis_without_effect_keeps_the_files_value_or_its_first() -> None:
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


def test_the_base_point_is_nearest_to_the_file() -> None:
    space = Space(small_sweep(engine={"zero_stage": 1, "reduce_bucket_size": 90_000}))
    assert space.base_point() == {"zero_stage": 1, "offload_optimizer": "none", "reduce_bucket_size": 100_000}


def test_lists_and_switches_are_choices_but_sizes_are_ranks() -> None:
    axes = {
        "optimizer.betas": [[0.9, 0.95], [0.9, 0.999]],
        "overlap_comm": [True, False],
        "zero_stage": [0, 1, 2, 3],
    }
    space = Space(small_sweep(axes=axes))
    encoded = space.encode(
        {"optimizer.betas": [0.9, 0.95], "overlap_comm": False, "zero_stage": 3}
    ) or space.encode({"betas": [0.9, 0.95], "overlap_comm": False, "zero_stage": 3})
    assert encoded is not None
    kinds = {key: type(distribution).__name__ for key, distribution in encoded[1].items()}
    assert set(kinds.values()) == {"CategoricalDistribution"}
    assert encoded[0]["overlap_comm"] is False, "plain values are themselves, for those who read the study"
    assert encoded[0]["betas"] == "[0.9, 0.95]"
    sized = Space(small_sweep()).encode({"zero_stage": 0, "reduce_bucket_size": 1_000_000})
    assert sized is not None
    assert sized[0]["reduce_bucket_size"] == 2


def test_values_that_hold_keys_are_the_same_whatever_the_order_of_these() -> None:
    space = Space(small_sweep(axes={"workload.options": [{"layers": 2, "hidden": 8}, {"layers": 3}]}))
    (axis,) = space.axes
    one, other = (
        space.encode({axis.key: o}) for o in ({"layers": 2, "hidden": 8}, {"hidden": 8, "layers": 2})
    )
    assert one == other is not None


def test_a_space_too_large_to_list_is_not_listed() -> None:
    sizes = [2**n for n in range(1, 31)]
    axes = {"reduce_bucket_size": sizes, "allgather_bucket_size": sizes, "micro_batch_size": sizes}
    sweep = sweep_from_mapping(
        {"axes": axes, "engine": {"zero_stage": 1}, "search": {"method": "tpe"}}, environ={}
    )
    assert Space(sweep).points() is None


@pytest.mark.parametrize("point", [{"zero_stage": 9}, {}, {"zero_stage": 0, "nonsense": 1}])
def test_what_is_not_in_the_space_is_not_encoded(point: dict[str, object]) -> None:
    assert Space(small_sweep()).encode(point) is None


@pytest.mark.parametrize("size", [10_000, 1_000_000, 100_000_000])
def test_the_ends_of_a_range_are_in_it(size: int) -> None:
    space = Space(ranged())
    point = {"offload_optimizer": "none", "reduce_bucket_size": size}
    assert space.encode(point) is not None
    for beyond in (9_999, 100_000_001):
        assert space.encode(point | {"reduce_bucket_size": beyond}) is None


def test_the_identity_of_a_point_does_not_depend_on_the_order_of_its_keys() -> None:
    assert point_key({"b": 1, "a": 2}) == point_key({"a": 2, "b": 1}) != point_key({"a": 1, "b": 2})


@pytest.mark.parametrize(("sizes", "listed"), [((200, 100), True), ((177, 113), False)])
def test_up_to_twenty_thousand_points_are_listed(sizes: tuple[int, int], listed: bool) -> None:
    keys = ("reduce_bucket_size", "allgather_bucket_size")
    axes = {key: list(range(1000, 1000 + size)) for key, size in zip(keys, sizes, strict=True)}
    assert Space(small_sweep(axes=axes, engine={"zero_stage": 1})).is_listable == listed


def test_a_range_alone_is_not_listed() -> None:
    axes = {"reduce_bucket_size": {"low": 1e4, "high": 1e8}}
    assert Space(small_sweep(axes=axes)).points() is None


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


def test_axes_keep_the_files_order_but_come_after_those_they_depend_on() -> None:
    def order(axes: dict[str, object]) -> list[str]:
        return [axis.key for axis in Space(small_sweep(axes=axes, engine={"engine": "mine:build"})).axes]

    assert order({"overlap_comm": [True, False], "zero_stage": [1, 2], "reduce_bucket_size": [10, 20]}) == [
        "overlap_comm", "zero_stage", "reduce_bucket_size",
    ]  # fmt: skip
    offload = {"values": ["none", "cpu"], "when": {"zero_stage": 1}}
    assert order({"offload_ratio": [0.5, 1.0], "zero_stage": [1, 2], "offload_optimizer": offload}) == [
        "zero_stage", "offload_optimizer", "offload_ratio",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "values", "ranked"),
    [
        ("reduce_bucket_size", [10, 100, 1000], True),
        ("reduce_bucket_size", [10, 100], False),
        ("dtype", ["float32", "bfloat16", "float16"], False),
        ("zero_stage", [0, 1, 2], False),
    ],
)
def test_three_sizes_make_a_scale_but_two_and_kinds_do_not(
    key: str, values: list[object], ranked: bool
) -> None:
    (axis,) = Space(small_sweep(axes={key: values})).axes
    assert is_scaled(axis) == ranked


def test_where_the_files_kind_is_not_on_the_axis_the_base_has_the_first_one() -> None:
    space = Space(small_sweep(axes={"dtype": ["bfloat16", "float16"]}))
    assert space.base_point() == {"dtype": "bfloat16"}


def test_the_base_of_a_range_is_the_files_number_or_the_nearest_end() -> None:
    axes = {"reduce_bucket_size": {"low": 1e4, "high": 1e8}}
    for size, nearest in ((1_000, 10_000), (50_000, 50_000), (10**9, 10**8)):
        space = Space(small_sweep(axes=axes, engine={"reduce_bucket_size": size}))
        assert space.base_point() == {"reduce_bucket_size": nearest}


def halves() -> Space:
    """Return a space with a range from 0 to 1."""
    axes = {"offload_ratio": {"low": 0.0, "high": 1.0}, "zero_stage": [1, 2]}
    engine = {"engine": "mine:build", "offload_optimizer": "cpu", "zero_stage": 1}
    return Space(small_sweep(axes=axes, engine=engine))


def test_a_taken_point_is_not_drawn_again() -> None:
    space = Space(small_sweep(axes={"zero_stage": [0, 1]}))
    taken = point_key({"zero_stage": 0})
    assert all(space.random_point(seed, {taken}) == {"zero_stage": 1} for seed in range(5))
    assert space.random_point(0, {taken, point_key({"zero_stage": 1})}) is None


def test_distance_in_a_range_is_the_share_of_it_that_lies_between() -> None:
    space = halves()
    low, high = ({"offload_ratio": ratio, "zero_stage": 1} for ratio in (0.25, 0.75))
    assert space.distance(low, high) == space.distance(high, low) == 0.5


def test_distance_counts_steps_of_scales_and_differences_of_kinds() -> None:
    space = Space(small_sweep())
    base = {"zero_stage": 1, "offload_optimizer": "none", "reduce_bucket_size": 10_000}
    assert space.distance(base, base) == 0
    assert space.distance(base, base | {"zero_stage": 2}) == 1
    assert space.distance(base, base | {"reduce_bucket_size": 100_000}) == 0.5
    larger = base | {"reduce_bucket_size": 1_000_000}
    assert space.distance(base | {"reduce_bucket_size": 100_000}, larger) == 0.5
    assert space.distance(base, base | {"reduce_bucket_size": 1_000_000, "offload_optimizer": "cpu"}) == 2
    assert space.distance(base, {"zero_stage": 1, "reduce_bucket_size": 10_000}) == 1


@pytest.mark.parametrize("axis", ["zero_stage", "offload_optimizer", "reduce_bucket_size"])
def test_a_value_is_as_far_from_none_as_can_be(axis: str) -> None:
    space = Space(small_sweep())
    whole = {"zero_stage": 1, "offload_optimizer": "none", "reduce_bucket_size": 10_000}
    without = {key: value for key, value in whole.items() if key != axis}
    assert space.distance(whole, without) == space.distance(without, whole) == 1


def test_a_value_of_a_range_is_as_far_from_none_as_can_be() -> None:
    space = halves()
    assert space.distance({"zero_stage": 1}, {"zero_stage": 1, "offload_ratio": 0.5}) == 1


def test_a_point_is_looked_for_a_thousand_times() -> None:
    class Barren(Space):
        drawn = 0

        def draw(self, study: optuna.Study) -> tuple[Trial, Point]:
            self.drawn += 1
            return study.ask(), {}

        def can_run(self, point: Point) -> bool:
            return False

    space = Barren(small_sweep())
    assert space.random_point(0, ()) is None
    assert space.drawn == 1000


def test_places_lie_between_the_ends_of_a_range() -> None:
    assert place_in(ValueRange(2.0, 6.0), 3.0) == 0.25
    assert place_in(ValueRange(1.0, 100.0, log=True), 10.0) == pytest.approx(0.5)
    assert place_in(ValueRange(100.0, 1e6, log=True), 1e4) == pytest.approx(0.5)


_SPACES = (Space(small_sweep(axes=CONDITIONAL, engine={"engine": "mine:build"})), Space(ranged()))
