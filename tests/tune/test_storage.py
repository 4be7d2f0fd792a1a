"""A journal that a kill tore goes on; one that is damaged, or a database that is away, says so clearly."""

import json
from pathlib import Path

import optuna
import pytest

from zbench.errors import ExitCode, UsageError
from zbench.tune.storage import (
    StudyStorageError,
    journal_storage,
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
