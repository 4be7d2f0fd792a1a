"""How much each axis moves the objective, by Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023)."""

import warnings
from collections.abc import Iterable

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, create_trial

from zbench.spec.metrics import Direction
from zbench.tune.history import Observation
from zbench.tune.space import Space

_FEWEST, _FEWEST_PER_AXIS = 12, 4


def importance(history: Iterable[Observation], space: Space, direction: Direction) -> dict[str, float]:
    """Return axis -> share of the variation of the first objective, the largest first; they add up to 1.

    Only trials that finished count. Empty where they are too few (fewer than 12, or than 4 per axis) or all
    alike: a share estimated from them would be noise.
    """
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler())
    trials, values = list[FrozenTrial](), set[float]()
    for seen in history:
        encoded = space.encode(seen.point)
        if encoded is None or seen.score is None or seen.score.values is None:
            continue
        params, distributions = encoded
        if params:
            value = seen.score.values[0]
            values.add(value)
            trials.append(create_trial(params=params, distributions=distributions, value=value))
    axes = {name for trial in trials for name in trial.params}
    if len(trials) < max(_FEWEST, _FEWEST_PER_AXIS * len(axes)) or len(values) < 2:
        return {}
    study.add_trials(trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {key: value for key, value in found.items() if value == value}
