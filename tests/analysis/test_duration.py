"""A sweep's duration by earlier repeats: own medians first, the usual one for what was never measured."""

from dataclasses import replace

import pytest

from tests.launch.conftest import make_trial
from zbench.analysis.adaptive_repeats import predict
from zbench.record.record import Record

FIRST, SECOND = make_trial(stage=1), make_trial(stage=2)


def took(trial, *seconds):
    known = Record("run", trial.trial_id, 0, trial.axes, trial.config(), "ok")
    return [replace(known, repeat=index, elapsed_s=value) for index, value in enumerate(seconds)]


def test_each_configuration_takes_its_own_median_for_each_repeat():
    found = predict([FIRST, SECOND], [*took(FIRST, 1.0, 2.0, 90.0), *took(SECOND, 5.0)])
    assert found.seconds == FIRST.run.repeats * 2.0 + SECOND.run.repeats * 5.0
    assert found.known == 2


def test_what_was_never_measured_takes_the_usual_time():
    found = predict([FIRST, SECOND], took(FIRST, 3.0))
    assert found.seconds == pytest.approx((FIRST.run.repeats + SECOND.run.repeats) * 3.0)
    assert found.known == 1


@pytest.mark.parametrize("earlier", [[], took(FIRST, None), took(make_trial(stage=3), 1.0)])
def test_nothing_is_predicted_from_nothing(earlier):
    assert predict([FIRST, SECOND], earlier) is None
