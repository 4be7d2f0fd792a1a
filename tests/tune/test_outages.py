"""What counts as a database that is away, and for how long it did: without a database."""

import itertools
import sqlite3
import time

import optuna
import pytest

from zbench.tune.outage import Outages, is_outage


class OperationalError(Exception):
    """As a driver's error of this name."""


def chained(*errors: Exception) -> Exception:
    """Return the last of these errors, each caused by the one before it."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def while_handling(context: Exception, error: Exception) -> Exception:
    """Return an error that was raised while another one was handled."""
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (sqlite3.OperationalError("gone"), True),
        (chained(OperationalError(), optuna.exceptions.StorageInternalError()), True),
        (chained(OperationalError(), ValueError(), optuna.exceptions.StorageInternalError()), True),
        (chained(ValueError(), optuna.exceptions.StorageInternalError()), False),
        (optuna.exceptions.StorageInternalError(), False),
        (chained(OperationalError(), ValueError()), False),
        (while_handling(OperationalError(), optuna.exceptions.StorageInternalError()), True),
    ],
)
def test_an_outage_is_a_storages_failure_that_a_lost_connection_caused(error: Exception, away: bool) -> None:
    assert is_outage(error) == away


def test_an_outage_is_remembered_for_as_long_as_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    outages = Outages()
    assert not outages.was_within(1e9)
    outages.note()
    now += 10
    assert outages.was_within(11)
    assert not outages.was_within(10)


class Clock:
    """A clock that only sleep moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 0.0, list[float]()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def away() -> None:
    raise sqlite3.OperationalError("gone")


def test_the_pauses_between_attempts_grow_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), list[str]()
    with pytest.raises(sqlite3.OperationalError):
        Outages(on_wait=told.append).outlast(away)
    assert clock.pauses[:7] == [0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0]
    assert told == ["the study's database is away; trying again for 120 s"]
    assert 120 < clock.now <= 125


def test_an_outage_may_last_just_as_long_as_is_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(sqlite3.OperationalError):
        Outages(0.2).outlast(away)
    assert clock.pauses == [0.2, 0.5]


@pytest.mark.parametrize(("later", "told"), [(60.0, 1), (61.0, 2)])
def test_an_outage_long_after_another_is_told_again(
    monkeypatch: pytest.MonkeyPatch, later: float, told: int
) -> None:
    clock, said = Clock(monkeypatch), list[str]()
    outages, attempts = Outages(60.0, said.append), [away, lambda: None]
    for _ in range(2):
        tries = iter(attempts)
        outages.outlast(lambda tries=tries: next(tries)())  # type: ignore[misc]
        clock.now = later
    assert len(said) == told


def test_a_defect_is_no_outage_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        Outages().outlast(lambda: 1 // 0)
    assert clock.pauses == []


def test_an_operation_is_tried_until_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, pauses, failures = 1000.0, list[str](), list[float](), 4

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    def operation() -> str:
        if len(pauses) < failures:
            raise sqlite3.OperationalError("gone")
        return "done"

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    assert Outages(60.0, told.append).outlast(operation) == "done"
    assert len(told) == 1, "an outage is told once"
    assert pauses == sorted(pauses)
    failures = 10**6
    began = now
    with pytest.raises(sqlite3.OperationalError):
        Outages(60.0).outlast(operation)
    assert 60 < now - began <= 60 + pauses[-1]
