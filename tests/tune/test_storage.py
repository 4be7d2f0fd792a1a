"""A storage that is away or is none says so clearly, without its password; short outages are waited for."""

import os
import sqlite3
import time
from pathlib import Path

import optuna
import pytest
import sqlalchemy.exc

from zbench.errors import UsageError
from zbench.tune.storage import (
    Outages,
    StudyStorageError,
    journal_storage,
    reaching,
    redacted,
    redacted_arguments,
    relational_storage,
    require_existing,
)

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/db",
        f"postgres://user:{SECRET}@127.0.0.1:1/db",
        f"postgresql://user@127.0.0.1:1/db?password={SECRET}",
        f"sqlite:////no/such/directory/{SECRET[:0]}x.db",
    ],
)
def test_a_storage_that_cannot_be_reached_is_named_without_its_password(url: str) -> None:
    with pytest.raises(StudyStorageError, match="cannot use storage") as caught:
        relational_storage(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None, "a traceback would show what the driver said"


def wrapped(error: Exception) -> Exception:
    """Return an error as Optuna raises it for one of a driver."""
    ours = optuna.exceptions.StorageInternalError("Optuna's words")
    ours.__cause__ = sqlalchemy.exc.OperationalError("SELECT 1", {}, error)
    return ours


def test_the_reason_is_in_the_drivers_own_words() -> None:
    with pytest.raises(StudyStorageError) as caught, reaching("sqlite:///study.db"):
        raise wrapped(sqlite3.OperationalError("disk I/O\n  error"))
    assert str(caught.value).startswith("cannot use storage sqlite:///study.db: disk I/O error; check that")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"nonsense://u:{SECRET}@h/db", "unknown kind of database 'nonsense'"),
        (f"oracle+oracledb://u:{SECRET}@h/db", "driver of this database is not installed"),
        (f"postgresql:/u:{SECRET}@h", "is no storage URL"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        relational_storage(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "redacted"),
    [
        (f"postgresql://me:{SECRET}@host:5433/db?sslmode=require", "postgresql://me:***@host:5433/db"),
        (f"postgresql://me:{SECRET}@host:no-port/db", "postgresql://..."),
        (f"--storage=postgresql://me:{SECRET} word@host/db", "--storage=postgresql://me:***@host/db"),
        ("f.yaml", "f.yaml"),
    ],
)
def test_a_command_line_is_kept_without_passwords(argument: str, redacted: str) -> None:
    assert redacted_arguments(["tune", argument]) == ["tune", redacted]


def test_nothing_is_left_of_passwords_that_begin_alike() -> None:
    url = f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}and-more"
    assert redacted(f"{SECRET}and-more was refused, as was {SECRET}", url) == "*** was refused, as was ***"


def test_a_database_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    missing = r"study.db: there is no such file; start the study with `zbench tune"
    with pytest.raises(UsageError, match=missing):
        require_existing(f"sqlite:///{file}")
    assert not file.exists()
    file.touch()
    for url in (f"sqlite:///{file}", "sqlite://", "sqlite:///:memory:", "postgresql://host/none"):
        require_existing(url)


def away() -> None:
    raise wrapped(sqlite3.OperationalError("gone"))


class Clock:
    """A clock that only sleep moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", lambda seconds: setattr(self, "now", self.now + seconds))


def test_a_long_outage_ends_with_the_databases_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    told = list[str]()
    with pytest.raises(optuna.exceptions.StorageInternalError):
        Outages(told.append).outlast(away)
    assert told == ["the study's database is away; trying again for 120 s"]
    assert 1120 < clock.now <= 1122


def test_an_operation_is_tried_until_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    told = list[str]()
    outages = Outages(told.append, 60.0)
    for later in (2000.0, 3000.0):
        attempts = iter([away, away, lambda: "done"])
        assert outages.outlast(lambda attempts=attempts: next(attempts)()) == "done"  # type: ignore[misc]
        clock.now = later
    assert len(told) == 2, "each outage is told once"


def test_a_defect_is_no_outage_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        Outages(print).outlast(lambda: 1 // 0)
    assert clock.now == 1000.0


def test_a_journal_leaves_no_lock_that_outlives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "study.journal"
    journal.write_bytes(b"garbage\n{")
    monkeypatch.setattr(os, "symlink", lambda *_: pytest.fail("Optuna's lock is a link"))
    study = optuna.create_study(storage=journal_storage(journal), study_name="s")
    study.tell(study.ask(), 1.0)
    reader = optuna.storages.journal.JournalFileBackend(str(journal))
    again = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(reader))
    assert [trial.value for trial in again.trials] == [1.0], "optuna-dashboard reads it like this"
    assert [path.name for path in tmp_path.iterdir()] == ["study.journal"]
