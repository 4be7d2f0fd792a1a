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


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (sqlite3.OperationalError("gone"), True),
        (chained(OperationalError(), optuna.exceptions.StorageInternalError()), True),
        (chained(OperationalError(), ValueError(), optuna.exceptions.StorageInternalError()), True),
        (chained(ValueError(), optuna.exceptions.StorageInternalError()), False),
        (optuna.exceptions.StorageInternalError(), False),
        (chained(OperationalError(), ValueError()), False),
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
