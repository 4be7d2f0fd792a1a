"""Phases: nested ones are taken out of the outer ones, and together they make up the whole."""

import contextlib
from types import SimpleNamespace

import pytest

from zbench.measure import clock
from zbench.measure.clock import PHASES, PhaseClock


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = SimpleNamespace(now=100.0)
    time.perf_counter = lambda: time.now
    monkeypatch.setattr(clock, "clocks", time)
    return time


def test_an_inner_phase_pauses_the_outer_one(fake: SimpleNamespace) -> None:
    phases = PhaseClock()
    with phases.phase("backward"):
        fake.now += 3
        with phases.phase("reduce"):
            fake.now += 2
        fake.now += 1
    fake.now += 50
    with phases.phase("optimizer"):
        fake.now += 4
        with phases.phase("gather"):
            fake.now += 1
    for seconds in (1, 5):
        with phases.phase("forward"):
            fake.now += seconds
    assert phases.take() == {"forward": 6, "backward": 4, "reduce": 2, "optimizer": 4, "gather": 1}
    assert phases.take() == dict.fromkeys(PHASES, 0.0)


def test_an_exception_closes_its_phase(fake: SimpleNamespace) -> None:
    phases = PhaseClock()
    with phases.phase("optimizer"):
        fake.now += 1
        with contextlib.suppress(ZeroDivisionError), phases.phase("reduce"):
            fake.now += 2
            raise ZeroDivisionError
        fake.now += 4
    assert phases.take() == dict.fromkeys(PHASES, 0) | {"reduce": 2, "optimizer": 5}
