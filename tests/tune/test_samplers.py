"""What every proposer keeps to, and what a model adds."""

from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial

from zbench.spec.sweep import SearchSpec, SweepSpec
from zbench.tune.objective import directions_of
from zbench.tune.samplers import Model, Propose, make_proposer, population, startup_points
from zbench.tune.space import Space, point_key

from .fakes import seen, small_sweep
from .test_space import ranged

METHODS = ["grid", "random", "tpe", "nsga2"]
MANY = {
    "reduce_bucket_size": [10**n for n in range(2, 9)],
    "zero_stage": [0, 1, 2],
    "overlap_comm": [True, False],
}


def proposer(sweep: SweepSpec, method: str, seed: int = 0) -> tuple[Space, Propose]:
    space = Space(sweep)
    search = SearchSpec(method=method, seed=seed, trials=40)  # type: ignore[arg-type]
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


GOALS = {"maximize": "tokens_per_s", "minimize": "peak_device_bytes"}


@pytest.mark.parametrize("method", METHODS[1:])
def test_ranges_are_drawn_from_and_there_may_be_several_objectives(method: str) -> None:
    assert len(play(*proposer(ranged(), method), 14)) == 14
    assert len(play(*proposer(small_sweep(objective=GOALS), method), 15, objectives=2)) == 15


KEYS = [
    "zero_stage", "overlap_comm", "reduce_bucket_size", "allgather_bucket_size", "micro_batch_size",
    "gradient_accumulation_steps", "gradient_clipping", "lr", "weight_decay", "eps",
]  # fmt: skip


@pytest.mark.parametrize(("axes", "points"), [(1, 5), (3, 5), (4, 6), (8, 10), (10, 10)])
def test_a_model_is_asked_after_two_points_more_than_axes_but_five_to_ten(axes: int, points: int) -> None:
    values = {"overlap_comm": [True, False], "zero_stage": [1, 2]}
    space = Space(small_sweep(axes={key: values.get(key, [1, 2]) for key in KEYS[:axes]}))
    assert len(space.axes) == axes
    assert startup_points(space) == points


@pytest.mark.parametrize(("trials", "size"), [(10, 8), (44, 8), (45, 9), (100, 20), (254, 50), (1000, 50)])
def test_a_generation_is_a_fifth_of_the_trials_but_eight_to_fifty(trials: int, size: int) -> None:
    assert population(trials) == size


@pytest.mark.parametrize("method", METHODS[2:])
def test_the_first_point_is_the_files_own_if_that_can_run(method: str) -> None:
    engine = {"zero_stage": 1, "reduce_bucket_size": 100_000}
    space, propose = proposer(small_sweep(engine=engine), method)
    assert propose([], ()) == space.base_point()
    excluded = {key: value for key, value in space.base_point().items() if key == "zero_stage"}
    space, propose = proposer(small_sweep(engine=engine, exclude=[excluded]), method)
    first = propose([], ())
    assert first is not None
    assert space.can_run(first)


def test_what_others_run_now_changes_what_the_model_proposes() -> None:
    space = Space(small_sweep(axes=MANY))
    points = space.points() or []
    finished = [seen(space, point, float(n)) for n, point in enumerate(points[:14])]
    running = [seen(space, point) for point in points[14:22]]
    taken = {point_key(point) for point in [*points[:22], space.base_point()]}
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


class Stubborn(optuna.samplers.RandomSampler):
    """Draws the same point again and again, counts its draws, and keeps the trials that it was shown."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.asked = 0
        self.shown = list[FrozenTrial]()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.shown = self.shown or study.trials[:-1]
        self.asked += 1

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        choices = getattr(param_distribution, "choices", None)
        return choices[0] if choices else param_distribution.low


@pytest.mark.parametrize("sweep", [small_sweep(), ranged()], ids=["listed", "ranges"])
def test_a_model_sees_what_failed_and_what_runs_and_one_that_keeps_to_what_is_taken_is_not_heard(
    sweep: SweepSpec,
) -> None:
    space = Space(sweep)
    sampler = Stubborn()
    points = [space.random_point(seed, ()) or {} for seed in range(3)]
    history = [seen(space, points[0], 3.0), seen(space, points[1], failed=True), seen(space, points[2])]
    propose = Model(space, ("maximize",), 0, lambda seed: sampler).propose
    taken = {point_key(space.base_point())}
    drawn = propose(history, taken)
    assert drawn is not None
    assert [trial.state.name for trial in sampler.shown] == ["COMPLETE", "PRUNED", "RUNNING"]
    assert sampler.shown[1].constraints == {"finished": 1.0}
    assert sampler.asked == 1
    other = propose(history, {*taken, point_key(drawn)})
    assert sampler.asked == 1 + 50
    assert other not in (None, drawn, space.base_point())
