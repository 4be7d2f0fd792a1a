"""A journal that a kill tore goes on; one that is damaged, or a database that is away, says so clearly."""

import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy.exc

from zbench.errors import ExitCode, UsageError
from zbench.tune.storage import (
    DEFAULT_HEARTBEAT,
    Heartbeat,
    JournalLock,
    StudyStorageError,
    journal_storage,
    reaching,
    redacted,
    redacted_arguments,
    relational_storage,
    require_existing,
    shown,
)

SECRET = "hunter2"


def filled(path: Path) -> Path:
    study = optuna.create_study(storage=journal_storage(path), study_name="s")
    for number in range(3):
        study.tell(study.ask(), float(number))
    return path


def values(path: Path) -> list[float]:
    return [trial.value for trial in optuna.load_study(study_name="s", storage=journal_storage(path)).trials]  # type: ignore[misc]


def test_a_torn_last_line_is_cut_off_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = filled(tmp_path / "j")
    whole = path.read_bytes()
    for cut in (1, 5, 20):
        path.write_bytes(whole[:-cut])
        study = optuna.load_study(study_name="s", storage=journal_storage(path))
        study.tell(study.ask(), 9.0)
        assert values(path)[-1] == 9.0
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


@pytest.mark.parametrize(
    "damage", [b"\x00\x00garbage\n", b'{"half": \n', b"[1, 2]\n", b'{"no": "operation"}\n']
)
def test_damage_in_the_middle_is_named_with_line_and_remedy(tmp_path: Path, damage: bytes) -> None:
    path = filled(tmp_path / "j")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = damage
    path.write_bytes(b"".join(lines))
    with pytest.raises(StudyStorageError, match=r"is damaged: line 2 .*--resume") as caught:
        journal_storage(path)
    assert caught.value.exit_code == ExitCode.USAGE
    assert path.read_bytes() == b"".join(lines), "nothing is changed in a file that needs a look"


def test_an_operation_that_makes_no_sense_is_damage_too(tmp_path: Path) -> None:
    path = filled(tmp_path / "j")
    with path.open("a") as file:
        file.write('{"op_code": 4, "worker_id": "x"}\n')
    with pytest.raises(StudyStorageError, match="is damaged"):
        journal_storage(path)


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


def test_a_worker_gives_a_sign_of_life_every_10_s_and_is_given_up_after_45() -> None:
    assert Heartbeat(10, 45) == DEFAULT_HEARTBEAT


def test_all_may_read_a_journals_lock_and_its_owner_write_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock = JournalLock(tmp_path / "j")
        assert lock.acquire()
        lock.release()
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.name == "j.lock"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


class Database:
    """Stands for Optuna's storage; the tables are in the making for the first so many that connect."""

    def __init__(self, collisions: int, message: str = "table already exists") -> None:
        self.urls: list[str] = []
        self._collisions, self._message = collisions, message

    def __call__(self, url: str, **_: Any) -> "Database":
        self.urls.append(url)
        if len(self.urls) <= self._collisions:
            raise sqlalchemy.exc.ProgrammingError("CREATE TABLE", {}, sqlite3.OperationalError(self._message))
        return self


def connected(monkeypatch: pytest.MonkeyPatch, database: Database, url: str = "sqlite:///x") -> list[float]:
    """Connect; return the pauses between attempts."""
    pauses: list[float] = []
    monkeypatch.setattr("zbench.tune.storage.RDBStorage", database)
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert relational_storage(url) is database  # type: ignore[comparison-overlap]
    return pauses


@pytest.mark.parametrize("collisions", [0, 1, 4])
def test_a_worker_waits_two_seconds_at_most_for_others_that_make_the_tables(
    monkeypatch: pytest.MonkeyPatch, collisions: int
) -> None:
    pauses = connected(monkeypatch, Database(collisions))
    assert len(pauses) == collisions
    assert sum(pauses) < 2


@pytest.mark.parametrize(
    ("database", "attempts"), [(Database(5), 5), (Database(1, "no such column"), 1)], ids=["long", "other"]
)
def test_what_stays_wrong_with_a_database_is_said(
    monkeypatch: pytest.MonkeyPatch, database: Database, attempts: int
) -> None:
    with pytest.raises(StudyStorageError, match=r"already exists|no such column"):
        connected(monkeypatch, database)
    assert len(database.urls) == attempts


def test_the_driver_that_is_installed_gets_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    database = Database(0)
    connected(monkeypatch, database, f"postgres://me:{SECRET}@host/db")
    assert database.urls == [f"postgresql+psycopg://me:{SECRET}@host/db"]


def wrapped(error: Exception) -> Exception:
    """Return an error as Optuna raises it for one of a driver."""
    ours = optuna.exceptions.StorageInternalError("Optuna's words")
    ours.__cause__ = sqlalchemy.exc.OperationalError("SELECT 1", {}, error)
    return ours


def bare(error: Exception) -> Exception:
    return error


@pytest.mark.parametrize("raised", [wrapped, bare])
@pytest.mark.parametrize(
    ("words", "said"), [("disk I/O\n  error", "disk I/O error"), ("", "OperationalError")]
)
def test_the_reason_is_in_the_drivers_own_words(
    raised: Callable[[Exception], Exception], words: str, said: str
) -> None:
    with pytest.raises(StudyStorageError) as caught, reaching("sqlite:///study.db"):
        raise raised(sqlite3.OperationalError(words))
    assert str(caught.value).startswith(f"cannot use storage sqlite:///study.db: {said}; check that")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"nonsense://u:{SECRET}@h/db", "unknown kind of database 'nonsense'"),
        (f"oracle+oracledb://u:{SECRET}@h/db", "driver of this database is not installed"),
        (f"{SECRET}", "is no storage URL"),
        (f"postgresql:/u:{SECRET}@h", "is no storage URL"),
        ("", "is no storage URL"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        relational_storage(url)
    assert SECRET not in str(caught.value)


def test_a_connection_that_died_meanwhile_is_replaced(tmp_path: Path) -> None:
    storage = relational_storage(f"sqlite:///{tmp_path}/study.db")
    pooled = [storage.engine.connect() for _ in range(5)]
    drivers = [connection.connection.driver_connection for connection in pooled]
    for connection in pooled:
        connection.close()
    for driver in drivers:
        assert driver is not None
        driver.close()
    assert storage.get_all_studies() == []
    storage.engine.dispose()


def test_what_is_shown_of_a_url() -> None:
    assert (
        shown(f"postgresql://me:{SECRET}@host:5433/db?sslmode=require") == "postgresql://me:***@host:5433/db"
    )
    assert shown(f"{SECRET} no url") == "this text"
    assert shown(f"postgresql://me:{SECRET}@host:no-port/db") == "postgresql://..."


def test_of_two_passwords_of_which_one_begins_the_other_nothing_is_left() -> None:
    url = f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}and-more"
    assert redacted(f"{SECRET}and-more was refused, as was {SECRET}", url) == "*** was refused, as was ***"


def test_a_command_line_is_kept_without_passwords() -> None:
    words = [
        "tune",
        "f.yaml",
        "--storage",
        f"postgresql://me:{SECRET}@h/db",
        f"--storage=postgresql://me:{SECRET}@h/db",
    ]
    kept = redacted_arguments(words)
    assert SECRET not in " ".join(kept)
    assert kept[:3] == words[:3]
    assert kept[4] == "--storage=postgresql://me:***@h/db"


@pytest.mark.parametrize(
    "argument", ["postgresql://me:my pass word@host/db", "--storage=postgresql://me:my pass word@host/db"]
)
def test_password_with_spaces_is_not_kept(argument: str) -> None:
    (kept,) = redacted_arguments([argument])
    assert "pass" not in kept
    assert "word" not in kept


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql://host/none", "no url"])
def test_only_a_file_must_exist(url: str) -> None:
    require_existing(url)


def test_a_database_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    with pytest.raises(
        UsageError, match=r"study.db: there is no such file; start the study with `zbench tune"
    ):
        require_existing(f"sqlite:///{file}")
    assert not file.exists()
    file.touch()
    require_existing(f"sqlite:///{file}")
