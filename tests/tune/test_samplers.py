"""The rules of every proposer, and the gain of a model."""

import pytest
from optuna.trial import FrozenTrial

from zbench.spec.sweep import SearchSpec, SweepSpec
from zbench.tune.objective import directions_of
from zbench.tune.samplers import Propose, make_proposer, startup_points
from zbench.tune.space import Space, point_key

from .fakes import seen, small_sweep
from .test_space import ranged

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
    """Return the keys of the proposals when a third of the trials is infeasible and a fifth fails."""
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


@pytest.mark.parametrize("method", ["grid", "tpe"])
def test_proposals_follow_from_the_seed_and_the_history(method: str) -> None:
    first, again, other = (play(*proposer(small_sweep(), method, seed), 12) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) == (method == "grid")


GOALS = {"maximize": "tokens_per_s", "minimize": "peak_device_bytes"}


@pytest.mark.parametrize(
    "method", ["tpe", *(pytest.param(name, marks=pytest.mark.check) for name in ("random", "nsga2"))]
)
def test_ranges_are_drawn_from_and_there_may_be_several_objectives(method: str) -> None:
    assert len(play(*proposer(ranged(), method), 14)) == 14
    assert len(play(*proposer(small_sweep(objective=GOALS), method), 15, objectives=2)) == 15


@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_the_first_point_is_the_files_own(method: str) -> None:
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
    [
        pytest.param("maximize", 9.0, 0.0, id="larger values", marks=pytest.mark.check),
        pytest.param("minimize", -9.0, 0.0, id="smaller values"),
        pytest.param("maximize", 1.0, -1.0, id="what fits"),
    ],
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
