"""What every proposer keeps to, what the design and the model add, and that they find the best soon."""

from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from zbench.spec.metrics import Direction
from zbench.spec.sweep import SearchSpec, SweepSpec
from zbench.tune.objective import directions_of
from zbench.tune.samplers import (
    Model,
    Propose,
    initial_design,
    make_proposer,
    population,
    startup_points,
)
from zbench.tune.space import Point, Space, point_key

from .fakes import seen, small_sweep
from .test_space import halves, ranged

METHODS = ["grid", "random", "tpe", "nsga2"]
MANY = {
    "reduce_bucket_size": [10**n for n in range(2, 9)],
    "zero_stage": [0, 1, 2],
    "overlap_comm": [True, False],
}


def proposer(sweep: SweepSpec, method: str, seed: int = 0) -> tuple[Space, Propose]:
    space, search = Space(sweep), SearchSpec(method=method, seed=seed, trials=40)  # type: ignore[arg-type]
    return space, make_proposer(space, search, directions_of(sweep.objective))


def play(space: Space, propose: Propose, count: int, objectives: int = 1) -> list[str]:
    """Return the keys of what is proposed when a third of the trials is infeasible and a fifth fails."""
    history: list[FrozenTrial] = []
    taken: list[str] = []
    for turn in range(count):
        point = propose(history, taken)
        if point is None:
            break
        assert point_key(point) not in taken
        assert space.can_run(point)
        taken.append(point_key(point))
        values = [] if turn % 5 == 4 else [float(turn + n) for n in range(objectives)]
        peak = 0.5 if turn % 3 == 2 else -0.5
        history.append(seen(space, point, *values, failed=not values, peak=peak))
    return taken


@pytest.mark.parametrize("method", METHODS)
def test_every_point_is_proposed_once_and_then_nothing(method: str) -> None:
    space, source = proposer(small_sweep(), method)
    played = play(space, source, 100)
    assert sorted(played) == sorted(point_key(point) for point in space.points() or ())


@pytest.mark.parametrize("method", METHODS)
def test_what_is_proposed_is_decided_by_the_seed_and_the_history(method: str) -> None:
    first, again, other = (play(*proposer(small_sweep(), method, seed), 12) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) == (method == "grid")


@pytest.mark.parametrize("method", METHODS[1:])
def test_ranges_are_drawn_from(method: str) -> None:
    assert len(play(*proposer(ranged(), method), 14)) == 14


@pytest.mark.parametrize("method", METHODS[2:])
def test_several_objectives(method: str) -> None:
    sweep = small_sweep(objective={"maximize": "tokens_per_s", "minimize": "peak_device_bytes"})
    assert len(play(*proposer(sweep, method), 15, objectives=2)) == 15


KEYS = [
    "zero_stage", "overlap_comm", "reduce_bucket_size", "allgather_bucket_size", "micro_batch_size",
    "gradient_accumulation_steps", "gradient_clipping", "lr", "weight_decay", "eps",
]  # fmt: skip


@pytest.mark.parametrize(("axes", "points"), [(1, 5), (3, 5), (4, 6), (8, 10), (10, 10)])
def test_a_design_has_two_points_more_than_axes_but_five_to_ten(axes: int, points: int) -> None:
    values = {"overlap_comm": [True, False], "zero_stage": [1, 2]}
    space = Space(small_sweep(axes={key: values.get(key, [1, 2]) for key in KEYS[:axes]}))
    assert len(space.axes) == axes
    assert startup_points(space) == points


@pytest.mark.parametrize(("trials", "size"), [(10, 8), (44, 8), (45, 9), (100, 20), (254, 50), (1000, 50)])
def test_a_generation_is_a_fifth_of_the_trials_but_eight_to_fifty(trials: int, size: int) -> None:
    assert population(trials) == size


def test_the_first_point_is_the_files_own_and_the_design_spreads() -> None:
    space, propose = proposer(small_sweep(engine={"zero_stage": 1, "reduce_bucket_size": 100_000}), "tpe")
    points: list[Point] = []
    for _ in range(startup_points(space)):
        point = propose([], [point_key(point) for point in points])
        assert point is not None
        points.append(point)
    assert points[0] == space.base_point()
    for axis in space.axes:
        values = {point[axis.key] for point in points if axis.key in point}
        assert values == set(axis.values or ()), f"{axis.key} is not seen whole"


def test_the_draws_of_a_seed_are_the_same_in_every_version() -> None:
    point = proposer(ranged(), "random", seed=1)[1]([], ())
    assert point == {
        "offload_optimizer": "cpu",
        "reduce_bucket_size": 10275,
        "offload_ratio": 0.2874348636452934,
    }


def test_what_others_run_now_changes_what_the_model_proposes() -> None:
    space = Space(small_sweep(axes=MANY))
    points = space.points() or []
    finished = [seen(space, point, float(n)) for n, point in enumerate(points[:14])]
    running = [seen(space, point) for point in points[14:22]]
    taken = {point_key(point) for point in points[:22]}
    alone, beside = (
        [proposer(small_sweep(axes=MANY), "tpe", seed)[1](history, taken) for seed in range(4)]
        for history in (finished, [*finished, *running])
    )
    assert alone != beside


@pytest.mark.parametrize(
    ("goal", "value", "peak"),
    [("maximize", 9.0, 0.0), ("minimize", -9.0, 0.0), ("maximize", 1.0, -1.0)],
    ids=["larger values", "smaller values", "what fits"],
)
def test_what_is_good_is_proposed_more_often(goal: str, value: float, peak: float) -> None:
    """Stage 2, a third of all points, is good: its points have another value, or fit where others do not."""
    space, propose = proposer(small_sweep(axes=MANY, objective={goal: "tokens_per_s"}), "tpe", seed=1)
    history: list[FrozenTrial] = []
    for _ in range(startup_points(space) + 15):
        point = propose(history, [point_key(trial.user_attrs["point"]) for trial in history])
        assert point is not None
        is_good = point["zero_stage"] == 2
        history.append(seen(space, point, value if is_good else 1.0, peak=peak if is_good else -peak))
    good = [trial.user_attrs["point"]["zero_stage"] == 2 for trial in history[-15:]]
    assert sum(good) > 7


def test_generations_of_nsga2_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def select_parent(self: Any, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        asked.append(len(self.get_population(study, generation - 1)))
        return original(self, study, generation)

    original = optuna.samplers.NSGAIISampler.select_parent
    monkeypatch.setattr(optuna.samplers.NSGAIISampler, "select_parent", select_parent)
    space, propose = proposer(small_sweep(axes=MANY), "nsga2")
    play(space, propose, 30)
    assert set(asked) == {population(40)}, "parents are a whole generation"


SPACE = Space(small_sweep())
POINTS = SPACE.points() or []
DRAWN = {"zero_stage": 0, "reduce_bucket_size": 10_000}


class Stubborn(optuna.samplers.RandomSampler):
    """Draws the first value of every axis, counts the draws, and keeps the trials that it was shown."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.asked, self.shown = 0, list[FrozenTrial]()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if not self.asked:
            self.shown = study.trials[:-1]
        self.asked += 1

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if isinstance(param_distribution, CategoricalDistribution):
            return param_distribution.choices[0]
        return param_distribution.low  # type: ignore[attr-defined]


def model(space: Space = SPACE, direction: Direction = "maximize") -> tuple[Propose, Stubborn]:
    sampler = Stubborn()
    return Model(space, (direction,), 0, [space.base_point()], lambda seed: sampler).propose, sampler


def shown(*values: float | None) -> list[FrozenTrial]:
    """Return the first points as trials; None: failed."""
    return [seen(SPACE, p, *([] if v is None else [v]), failed=v is None) for p, v in zip(POINTS, values)]  # noqa: B905


def test_the_model_is_asked_once_as_many_points_were_seen_as_the_design_has() -> None:
    propose, sampler = model()
    early = startup_points(SPACE) - 1
    assert (propose(shown(*[None] * early), set()), sampler.asked) == (SPACE.base_point(), 0)
    assert (propose(shown(*[None] * (early + 1)), set()), sampler.asked) == (DRAWN, 1)


def test_the_model_is_shown_what_failed_and_what_runs() -> None:
    propose, sampler = model()
    propose([*shown(3.0, None, 7.0, 1.0), seen(SPACE, POINTS[4])], {point_key(SPACE.base_point())})
    states = [trial.state.name for trial in sampler.shown]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE", "COMPLETE", "RUNNING"]
    assert sampler.shown[1].constraints == {"finished": 1.0}


def test_after_twelve_draws_that_are_taken_the_point_nearest_to_the_best_is_next() -> None:
    propose, sampler = model()
    best = POINTS[-1]
    history = [
        *shown(1.0, None, 2.0, None),
        seen(SPACE, POINTS[4], 99.0, peak=1.0),
        seen(SPACE, best, 5.0, peak=-1.0),
    ]
    taken = {point_key(DRAWN), *(point_key(trial.user_attrs["point"]) for trial in history)}
    point = propose(history, taken)
    assert sampler.asked == 12
    untaken = [point for point in POINTS if point_key(point) not in taken]
    assert point in untaken
    nearest = min(SPACE.distance(other, best) for other in untaken)
    assert SPACE.distance(point, best) == nearest < 1


def test_where_nothing_is_feasible_any_untaken_point_is_next() -> None:
    left = POINTS[7]
    taken = {point_key(point) for point in POINTS if point != left}
    propose, _ = model()
    assert propose(shown(*[None] * 5), taken) == left
    assert propose(shown(*[None] * 5), taken | {point_key(left)}) is None


def test_of_a_range_another_point_is_drawn_where_the_models_are_taken() -> None:
    space = Space(ranged())
    propose, sampler = model(space)
    history = [seen(space, space.base_point(), failed=True)] * 5
    taken = {point_key(space.base_point())}
    first = propose(history, taken)
    assert first is not None
    sampler.asked = 0
    second = propose(history, taken | {point_key(first)})
    assert second is not None
    assert sampler.asked == 12
    assert second != first
    assert space.can_run(second)


@pytest.mark.parametrize("space", [Space(small_sweep()), halves()], ids=["listed", "drawn"])
def test_a_design_has_distinct_points_that_can_run_the_second_far_from_the_first(space: Space) -> None:
    points = initial_design(space, 8, seed=1)
    assert len({point_key(point) for point in points}) == len(points) == 8
    assert all(space.can_run(point) for point in points)
    assert points[0] == space.base_point()
    farthest = max(space.distance(points[0], other) for other in [*points, *(space.points() or ())])
    assert space.distance(points[0], points[1]) == farthest


def test_where_the_files_own_configuration_cannot_run_another_point_is_the_first() -> None:
    space = Space(small_sweep(exclude=[{"zero_stage": 0}]))
    assert not space.can_run(space.base_point())
    (first,) = initial_design(space, 1, seed=0)
    assert space.can_run(first)


@pytest.mark.parametrize(("space", "most"), [(SPACE, len(POINTS)), (halves(), 101)], ids=["listed", "drawn"])
def test_a_design_holds_no_more_than_the_space_or_a_hundred_draws(space: Space, most: int) -> None:
    """And the file's own configuration, which is no draw."""
    assert len(initial_design(space, 1000, seed=0)) == most


def test_a_range_where_nothing_can_run_has_no_design() -> None:
    space = Space(
        small_sweep(axes={"offload_ratio": {"low": 0.1, "high": 0.9}, "zero_stage": [0]}, engine={})
    )
    assert space.random_point(0, ()) is not None
    nothing = Space(small_sweep(
        axes={"initial_loss_scale": {"low": 1.0, "high": 2.0}, "zero_stage": [1]},
        engine={"dtype": "float16", "engine": "unknown"},
    ))  # fmt: skip
    assert initial_design(nothing, 3, seed=0) == []


def test_the_design_of_a_seed_is_the_same_in_every_version() -> None:
    _, second, third = initial_design(halves(), 3, seed=1)
    assert second == {"offload_ratio": 0.13375348098247308, "zero_stage": 2}
    assert third == {"offload_ratio": 0.00973509449098009, "zero_stage": 1}
