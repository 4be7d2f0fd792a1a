"""The first points of a search: distinct, able to run, far apart, the same for the same seed."""

import pytest
from optuna.trial import Trial

from zbench.spec.axes import ValueRange
from zbench.tune.design import distance, initial_design, place_in, random_point
from zbench.tune.space import Point, Space, point_key

from .fakes import small_sweep

RANGE = {"low": 1e4, "high": 1e8, "log": True}


def ranged() -> Space:
    axes = {"offload_ratio": {"low": 0.0, "high": 1.0}, "zero_stage": [1, 2]}
    engine = {"engine": "mine:build", "offload_optimizer": "cpu", "zero_stage": 1}
    return Space(small_sweep(axes=axes, engine=engine))


@pytest.mark.parametrize("space", [Space(small_sweep()), ranged()], ids=["listed", "drawn"])
def test_points_are_distinct_and_can_run(space: Space) -> None:
    points = initial_design(space, 8, seed=1)
    assert len({point_key(point) for point in points}) == len(points) == 8
    assert all(space.can_run(point) for point in points)
    assert points == initial_design(space, 8, seed=1)


def test_where_the_files_own_configuration_cannot_run_another_point_is_the_first() -> None:
    space = Space(small_sweep(exclude=[{"zero_stage": 0}]))
    assert not space.can_run(space.base_point())
    (first,) = initial_design(space, 1, seed=0)
    assert space.can_run(first)


def test_a_design_never_holds_more_points_than_the_space() -> None:
    space = Space(small_sweep())
    assert len(initial_design(space, 100, seed=0)) == len(space.points() or ())


def test_a_pool_of_a_range_is_a_hundred_draws() -> None:
    space = ranged()
    found = initial_design(space, 1000, seed=0)
    assert len(found) == 101, "the file's own configuration, and the pool"
    assert found[0] == space.base_point()


def test_a_range_where_nothing_can_run_has_no_design() -> None:
    space = Space(
        small_sweep(axes={"offload_ratio": {"low": 0.1, "high": 0.9}, "zero_stage": [0]}, engine={})
    )
    assert random_point(space, 0, ()) is not None
    nothing = Space(small_sweep(
        axes={"initial_loss_scale": {"low": 1.0, "high": 2.0}, "zero_stage": [1]},
        engine={"dtype": "float16", "engine": "unknown"},
    ))  # fmt: skip
    assert initial_design(nothing, 3, seed=0) == []


def test_a_taken_point_is_not_drawn_again() -> None:
    space = Space(small_sweep(axes={"zero_stage": [0, 1]}))
    taken = point_key({"zero_stage": 0})
    assert all(random_point(space, seed, {taken}) == {"zero_stage": 1} for seed in range(5))
    assert random_point(space, 0, {taken, point_key({"zero_stage": 1})}) is None


def test_the_second_point_is_the_farthest_from_the_first() -> None:
    space = Space(small_sweep())
    first, second = initial_design(space, 2, seed=0)
    assert distance(space.axes, first, second) == max(
        distance(space.axes, first, other) for other in space.points() or ()
    )


def test_distance_in_a_range_is_the_share_of_it_that_lies_between() -> None:
    axes = ranged().axes
    low, high = ({"offload_ratio": ratio, "zero_stage": 1} for ratio in (0.25, 0.75))
    assert distance(axes, low, high) == distance(axes, high, low) == 0.5


def test_distance_counts_steps_of_scales_and_differences_of_kinds() -> None:
    axes = Space(small_sweep()).axes
    base = {"zero_stage": 1, "offload_optimizer": "none", "reduce_bucket_size": 10_000}
    assert distance(axes, base, base) == 0
    assert distance(axes, base, base | {"zero_stage": 2}) == 1
    assert distance(axes, base, base | {"reduce_bucket_size": 100_000}) == 0.5
    larger = base | {"reduce_bucket_size": 1_000_000}
    assert distance(axes, base | {"reduce_bucket_size": 100_000}, larger) == 0.5
    assert distance(axes, base, base | {"reduce_bucket_size": 1_000_000, "offload_optimizer": "cpu"}) == 2
    assert distance(axes, base, {"zero_stage": 1, "reduce_bucket_size": 10_000}) == 1


@pytest.mark.parametrize("axis", ["zero_stage", "offload_optimizer", "reduce_bucket_size"])
def test_a_value_is_as_far_from_none_as_can_be(axis: str) -> None:
    axes = Space(small_sweep()).axes
    whole = {"zero_stage": 1, "offload_optimizer": "none", "reduce_bucket_size": 10_000}
    without = {key: value for key, value in whole.items() if key != axis}
    assert distance(axes, whole, without) == distance(axes, without, whole) == 1


def test_a_value_of_a_range_is_as_far_from_none_as_can_be() -> None:
    axes = ranged().axes
    assert distance(axes, {"zero_stage": 1}, {"zero_stage": 1, "offload_ratio": 0.5}) == 1


def test_a_point_is_looked_for_a_thousand_times() -> None:
    class Barren(Space):
        drawn = 0

        def suggest(self, trial: Trial) -> Point:
            self.drawn += 1
            return {}

        def can_run(self, point: Point) -> bool:
            return False

    space = Barren(small_sweep())
    assert random_point(space, 0, ()) is None
    assert space.drawn == 1000


def test_the_design_of_a_seed_is_the_same_in_every_version() -> None:
    _, second, third = initial_design(ranged(), 3, seed=1)
    assert second == {"offload_ratio": 0.13375348098247308, "zero_stage": 2}
    assert third == {"offload_ratio": 0.00973509449098009, "zero_stage": 1}


def test_places_lie_between_the_ends_of_a_range() -> None:
    assert place_in(ValueRange(2.0, 6.0), 3.0) == 0.25
    assert place_in(ValueRange(1.0, 100.0, log=True), 10.0) == pytest.approx(0.5)
    assert place_in(ValueRange(100.0, 1e6, log=True), 1e4) == pytest.approx(0.5)
