"""What a model is asked and shown, with a sampler in Optuna's place that always draws the same point."""

from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from zbench.spec.metrics import Direction
from zbench.tune.design import distance
from zbench.tune.history import Observation, Score
from zbench.tune.samplers import ModelProposer
from zbench.tune.space import Point, Space, point_key

from .fakes import small_sweep
from .test_space import ranged

SPACE = Space(small_sweep())
POINTS = SPACE.points() or []
DRAWN = {"zero_stage": 0, "reduce_bucket_size": 10_000}
FAILED = Score(None, {"finished": 1.0})


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


def model(space: Space = SPACE, direction: Direction = "maximize") -> tuple[ModelProposer, Stubborn]:
    sampler = Stubborn()
    return ModelProposer(space, (direction,), 0, lambda seed: sampler, startup=2, order=list), sampler


def seen(*scores: Score | None) -> list[Observation]:
    return [Observation(point, score) for point, score in zip(POINTS, scores, strict=False)]


def test_the_model_is_asked_once_as_many_points_were_seen_as_the_design_has() -> None:
    source, sampler = model()
    first = source.propose(seen(FAILED), set())
    assert first is not None
    assert (first.point, sampler.asked) == (SPACE.base_point(), 0)
    second = source.propose(seen(FAILED, FAILED), set())
    assert second is not None
    assert (second.point, sampler.asked) == (DRAWN, 1)


@pytest.mark.parametrize(("direction", "worst"), [("maximize", 3.0), ("minimize", 7.0)])
def test_what_failed_is_shown_with_the_worst_value_that_was_seen(direction: Direction, worst: float) -> None:
    source, sampler = model(direction=direction)
    source.propose(seen(Score((3.0,)), FAILED, Score((7.0,)), None), set())
    finished = [trial.value for trial in sampler.shown if trial.state == optuna.trial.TrialState.COMPLETE]
    assert finished == [3.0, worst, 7.0]
    assert sampler.shown[1].constraints == {"finished": 1.0}
    assert sampler.shown[3].state == optuna.trial.TrialState.RUNNING


def test_after_twelve_draws_that_are_taken_the_point_nearest_to_the_best_is_next() -> None:
    source, sampler = model()
    best = POINTS[-1]
    history = [
        *seen(Score((1.0,)), None, Score((99.0,), {"peak": 1.0}), FAILED),
        Observation(best, Score((5.0,), {"peak": -1.0})),
    ]
    taken = {point_key(DRAWN), *(point_key(observation.point) for observation in history)}
    proposal = source.propose(history, taken)
    assert proposal is not None
    assert sampler.asked == 12
    untaken = [point for point in POINTS if point_key(point) not in taken]
    nearest = min(distance(SPACE.axes, point, best) for point in untaken)
    assert proposal.point in untaken
    assert distance(SPACE.axes, proposal.point, best) == nearest < 1


def test_where_nothing_is_feasible_any_untaken_point_is_next() -> None:
    left: Point = POINTS[7]
    taken = {point_key(point) for point in POINTS if point != left}
    source, _ = model()
    proposal = source.propose(seen(FAILED, FAILED), taken)
    assert proposal is not None
    assert proposal.point == left
    assert source.propose(seen(FAILED, Score((1.0,))), taken | {point_key(left)}) is None


def test_of_a_range_another_point_is_drawn_where_the_models_are_taken() -> None:
    space = Space(ranged())
    source, sampler = model(space)
    first = source.propose(seen(FAILED, FAILED), set())
    assert first is not None
    taken = {point_key(first.point)}
    sampler.asked = 0
    second = source.propose(seen(FAILED, FAILED), taken)
    assert second is not None
    assert sampler.asked == 12
    assert point_key(second.point) not in taken
    assert space.can_run(second.point)
