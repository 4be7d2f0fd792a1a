"""What every proposer keeps to, and what the model adds."""

from typing import Any

import optuna
import pytest

from zbench.spec.sweep import SweepSpec
from zbench.tune.history import Observation, Score
from zbench.tune.objective import Scorer
from zbench.tune.samplers import Proposer, make_proposer, population, startup_points
from zbench.tune.space import Point, Space, point_key

from .fakes import small_sweep
from .test_space import CONDITIONAL, ranged

METHODS = ["grid", "random", "tpe", "nsga2"]
MANY = {
    "reduce_bucket_size": [10**n for n in range(2, 9)],
    "zero_stage": [0, 1, 2],
    "overlap_comm": [True, False],
}


def proposer(sweep: SweepSpec, method: str, seed: int = 0) -> tuple[Space, Proposer]:
    space = Space(sweep)
    return space, make_proposer(space, method, Scorer(sweep.objective).directions, seed=seed, trials=40)


def play(space: Space, source: Proposer, count: int, objectives: int = 1) -> list[str]:
    """Return the keys of what is proposed when a third of the trials is infeasible and a fifth fails."""
    history: list[Observation] = []
    taken: set[str] = set()
    for turn in range(count):
        proposal = source.propose(history, taken)
        if proposal is None:
            break
        key = point_key(proposal.point)
        assert key not in taken
        assert space.can_run(proposal.point)
        taken.add(key)
        values = None if turn % 5 == 4 else tuple(float(turn + n) for n in range(objectives))
        score = Score(values, {"finished": float(values is None), "peak": 0.5 if turn % 3 == 2 else -0.5})
        history.append(Observation(proposal.point, score, proposal.notes))
    return [point_key(observation.point) for observation in history]


@pytest.mark.parametrize("method", METHODS)
def test_every_point_is_proposed_once_and_then_nothing(method: str) -> None:
    space, source = proposer(small_sweep(), method)
    played = play(space, source, 100)
    assert sorted(played) == sorted(point_key(point) for point in space.points() or ())


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_and_history_give_the_same_points(method: str) -> None:
    runs = [play(*proposer(small_sweep(), method, seed=5), 12) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("method", ["random", "tpe", "nsga2"])
def test_another_seed_gives_other_points(method: str) -> None:
    assert play(*proposer(small_sweep(), method, seed=1), 8) != play(
        *proposer(small_sweep(), method, seed=2), 8
    )


@pytest.mark.parametrize("method", ["random", "tpe", "nsga2"])
def test_ranges_are_drawn_from(method: str) -> None:
    assert len(play(*proposer(ranged(), method), 14)) == 14


@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_several_objectives(method: str) -> None:
    sweep = small_sweep(objective={"maximize": "tokens_per_s", "minimize": "peak_device_bytes"})
    assert len(play(*proposer(sweep, method), 15, objectives=2)) == 15


def test_the_first_point_is_the_files_own_and_the_design_spreads() -> None:
    space, source = proposer(small_sweep(engine={"zero_stage": 1, "reduce_bucket_size": 100_000}), "tpe")
    taken: list[dict[str, object]] = []
    for _ in range(startup_points(space)):
        proposal = source.propose([], {point_key(point) for point in taken})
        assert proposal is not None
        taken.append(proposal.point)
    assert taken[0] == space.base_point()
    for axis in space.axes:
        assert {p[axis.key] for p in taken if axis.key in p} == set(axis.values or ()), (
            f"{axis.key} is not seen whole"
        )


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


def test_the_draws_of_a_seed_are_the_same_in_every_version() -> None:
    _, source = proposer(ranged(), "random", seed=1)
    found = source.propose([], ())
    assert found is not None
    assert found.point == {
        "offload_optimizer": "cpu",
        "reduce_bucket_size": 10275,
        "offload_ratio": 0.2874348636452934,
    }


def test_what_others_run_now_changes_what_the_model_proposes() -> None:
    space = Space(small_sweep(axes=MANY))
    points = space.points() or []
    finished = [Observation(point, Score((float(n),))) for n, point in enumerate(points[:14])]
    running = [Observation(point, None) for point in points[14:22]]
    taken = {point_key(point) for point in points[:22]}
    alone, beside = (
        [proposer(small_sweep(axes=MANY), "tpe", seed)[1].propose(history, taken) for seed in range(4)]
        for history in (finished, [*finished, *running])
    )
    assert alone != beside


def test_axes_that_depend_on_others_are_learnt_together_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    space, source = proposer(small_sweep(axes=CONDITIONAL, engine={"engine": "mine:build"}), "tpe")
    points, alone = space.points() or [], list[str]()

    def sample_independent(*asked: Any) -> Any:
        alone.append(asked[3])
        return original(*asked)

    original = optuna.samplers.TPESampler.sample_independent
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", sample_independent)
    history = [Observation(point, Score((float(n),))) for n, point in enumerate(points[:20])]
    found = source.propose(history, {point_key(point) for point in points[:20]})
    assert found is not None
    assert "offload_ratio" in found.point
    assert alone == [], "every axis that is asked for is drawn with those it depends on"


def test_running_trials_are_avoided_but_do_not_teach() -> None:
    space, source = proposer(small_sweep(), "tpe")
    points = space.points() or []
    running = [Observation(point, None) for point in points[:10]]
    taken = {point_key(point) for point in points[:10]}
    proposal = source.propose(running, taken)
    assert proposal is not None
    assert point_key(proposal.point) not in taken


def test_tpe_learns_where_the_good_points_are() -> None:
    space, source = proposer(small_sweep(axes=MANY), "tpe")
    history: list[Observation] = []
    taken: set[str] = set()
    for _ in range(20):
        proposal = source.propose(history, taken)
        assert proposal is not None
        taken.add(point_key(proposal.point))
        value = 10.0 * (proposal.point["zero_stage"] == 2) + 5.0 * proposal.point["overlap_comm"]
        history.append(Observation(proposal.point, Score((value,), {"finished": 0.0})))
    learnt = [o.point for o in history[startup_points(space) :]]
    assert sum(p["zero_stage"] == 2 and p["overlap_comm"] for p in learnt) >= 5, "7 of 42 points are so"


def test_infeasible_points_teach_too() -> None:
    fitting = [_share_that_fits(seed) for seed in range(6)]
    assert sum(fitting) / len(fitting) > 0.4, "a third of all points fits"


def _share_that_fits(seed: int) -> float:
    """Return how many of ten points after the design fit, where all points are alike but for that."""
    space, source = proposer(small_sweep(axes=MANY), "tpe", seed)
    history: list[Observation] = []
    taken: set[str] = set()
    for _ in range(startup_points(space) + 10):
        proposal = source.propose(history, taken)
        assert proposal is not None
        taken.add(point_key(proposal.point))
        fits = proposal.point["zero_stage"] == 2
        history.append(Observation(proposal.point, Score((1.0,), {"peak": -1.0 if fits else 1.0})))
    return sum(o.point["zero_stage"] == 2 for o in history[startup_points(space) :]) / 10


def test_nsga2_keeps_its_generations_through_the_history() -> None:
    sweep = small_sweep(objective={"maximize": "tokens_per_s", "minimize": "peak_device_bytes"})
    _, source = proposer(sweep, "nsga2")
    history: list[Observation] = []
    taken: set[str] = set()
    while (proposal := source.propose(history, taken)) is not None:
        taken.add(point_key(proposal.point))
        history.append(Observation(proposal.point, Score((1.0, 2.0), {"finished": 0.0}), proposal.notes))
    generations = [value for o in history for value in o.notes.values()]
    assert generations, "the sampler's notes are kept"
    assert generations == sorted(generations)


@pytest.mark.parametrize("method", METHODS)
def test_an_order_of_the_first_points_leaves_none_out(method: str) -> None:
    sweep = small_sweep()
    space = Space(sweep)
    seen: list[int] = []

    def reverse(points: list[Point]) -> list[Point]:
        seen.append(len(points))
        return points[::-1]

    directions = Scorer(sweep.objective).directions
    plain = make_proposer(space, method, directions, seed=3, trials=40)
    turned = make_proposer(space, method, directions, seed=3, trials=40, order=reverse)
    first, other = plain.propose([], set()), turned.propose([], set())
    assert first is not None
    assert other is not None
    assert seen[0] > 1
    assert first.point != other.point
    assert sorted(play(space, turned, 40)) == sorted(play(space, plain, 40))
