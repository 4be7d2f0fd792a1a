"""Where a study is kept: a journal file beside the results, or a relational database that hosts share.

No password leaves this module: messages name a storage by `shown`, and what a driver says is searched for it.
"""

import contextlib
import fcntl
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from zbench.errors import ExitCode, UsageError, ZbenchError

JOURNAL = "study.journal"
_CONNECT_SECONDS = 8
_TABLE_WAITS = (0.05, 0.2, 0.5, 1.0)
_UNKNOWN_URL = "expected a storage such as postgresql://user@host/database or sqlite:///file"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Signs of life of the workers of a shared study, in seconds: how often, and when one is given up."""

    pace: int = 10
    grace: int = 45


DEFAULT_HEARTBEAT = Heartbeat()


class StudyStorageError(ZbenchError):
    """The study's storage cannot be reached or cannot be read; finished trials are in the run directory."""

    exit_code = ExitCode.USAGE


class JournalLock:
    """A lock on a journal file that dies with the process holding it, as `flock` does."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + ".lock")
        self._fd = -1

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Let others write."""
        os.close(self._fd)


def journal_storage(path: Path) -> BaseStorage:
    """Open (or begin) a journal file. A torn last line is cut off; StudyStorageError for damage elsewhere."""
    _repair(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = JournalFileBackend(str(path), lock_obj=JournalLock(path))  # type: ignore[arg-type]
    try:
        return JournalStorage(backend)
    except Exception as error:  # a line that is JSON but no operation of a journal fails in as many ways
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def relational_storage(url: str, heartbeat: Heartbeat = DEFAULT_HEARTBEAT) -> RDBStorage:
    """Connect to a database by SQLAlchemy's URL, with heartbeats so that trials of lost workers are noticed.

    UsageError for a URL that is none, StudyStorageError if the database cannot be reached.
    """
    full = _with_driver(url)
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if full.startswith("postgresql"):
        arguments["connect_args"] = {"connect_timeout": _CONNECT_SECONDS}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # heartbeats are "experimental", and a driver may quote the URL
        stack.enter_context(reaching(url))
        return _with_tables(
            lambda: RDBStorage(
                full, engine_kwargs=arguments, heartbeat_interval=heartbeat.pace, grace_period=heartbeat.grace
            )
        )


def require_existing(url: str) -> None:
    """Raise UsageError for a database file that is not there: opening it would make an empty one."""
    from sqlalchemy.engine import make_url

    try:
        parsed = make_url(url)
    except Exception:
        return  # `relational_storage` says what is wrong
    is_file = parsed.drivername.startswith("sqlite") and parsed.database not in (None, "", ":memory:")
    if is_file and not Path(str(parsed.database)).exists():
        raise UsageError(
            f"{shown(url)}: there is no such file; start the study with `zbench tune FILE --storage` first"
        )


def _with_tables(connect: Callable[[], RDBStorage]) -> RDBStorage:
    """Connect, and once more when another worker made the tables at the same moment.

    Databases let two "create if missing" collide; the one that lost finds the tables at its next try.
    """
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for wait in _TABLE_WAITS:
        try:
            return connect()
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if "already exists" not in str(error):
                raise
            time.sleep(wait)
    return connect()


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn a database's failures into one clear message without its password."""
    try:
        yield
    except ImportError:
        remedy = 'pip install "zbench[postgres]"' if url.startswith("postgres") else "install it with pip"
        raise UsageError(f"{shown(url)}: the driver of this database is not installed; {remedy}") from None
    except Exception as error:
        if not is_storage_failure(error):
            raise
        raise StudyStorageError(
            f"cannot use storage {shown(url)}: {_reason(error, url)}; check that the server runs, "
            "the database exists and the user may enter"
        ) from None


def is_storage_failure(error: Exception) -> bool:
    """Whether an exception came from a database, its driver or Optuna's view of them."""
    module = type(error).__module__.partition(".")[0]
    return module in {
        "sqlalchemy",
        "psycopg",
        "psycopg2",
        "sqlite3",
        "alembic",
        "MySQLdb",
        "pymysql",
    } or isinstance(error, optuna.exceptions.StorageInternalError)


def shown(url: str) -> str:
    """Return a storage URL as it may be printed: without password and options."""
    try:
        from sqlalchemy.engine import make_url

        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except Exception:  # not a URL, so there is no telling where a password stands
        scheme = re.match(r"[a-z0-9+]+://", url)
        return f"{scheme[0]}..." if scheme else "this text"


def _with_driver(url: str) -> str:
    """Return the URL as SQLAlchemy wants it, with the driver that the `postgres` extra installs."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(re.sub(r"^postgres://", "postgresql://", url))
    except (ArgumentError, ValueError):
        raise UsageError(f"{shown(url)} is no storage URL: {_UNKNOWN_URL}") from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        parsed.get_dialect()
    except Exception:
        raise UsageError(
            f"{shown(url)}: unknown kind of database {parsed.drivername!r}; {_UNKNOWN_URL}"
        ) from None
    return parsed.render_as_string(hide_password=False)


def _reason(error: Exception, url: str) -> str:
    """Return the driver's own words, in one line and without the password."""
    cause: BaseException = error
    while cause.__cause__ is not None or getattr(cause, "orig", None) is not None:
        cause = getattr(cause, "orig", None) or cause.__cause__ or cause
    text = " ".join(str(cause).split()) or type(cause).__name__
    return redacted(text, url)


def redacted(text: str, url: str) -> str:
    """Return a text without the password of a storage URL, as written or percent-decoded."""
    from sqlalchemy.engine import make_url

    try:
        parsed = make_url(url)
    except Exception:
        return "(reason withheld: the URL cannot be read, and may hold a password)"
    secrets = {str(parsed.password)} if parsed.password else set()
    secrets |= {str(value) for key, value in parsed.query.items() if "pass" in key.lower()}
    written = re.search(r"://[^:/@]*:([^@]*)@", url)
    secrets |= {written[1]} if written and written[1] else set()
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the passwords of URLs in it; a URL goes to the end of its argument."""
    return [
        re.sub(r"(?s)[A-Za-z][A-Za-z0-9+]*://.+", lambda found: shown(found[0]), argument)
        for argument in arguments
    ]


def _repair(path: Path) -> None:
    """Cut off what a kill left of a last line; refuse a journal with a damaged line elsewhere."""
    if not path.exists():
        return
    lock = JournalLock(path)
    lock.acquire()
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        os.truncate(path, len(whole))
    finally:
        lock.release()
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            operation = json.loads(line)
        except ValueError:
            raise _damaged(path, f"line {number} is not JSON") from None
        if not isinstance(operation, dict) or "op_code" not in operation:
            raise _damaged(path, f"line {number} is no operation of a study")


def _damaged(path: Path, what: str) -> StudyStorageError:
    return StudyStorageError(
        f"{path} is damaged: {what}; move it away and use --resume: it is rebuilt from the records beside it"
    )
