"""Where a study is kept: a journal file beside the results, or a relational database that hosts share.

No password leaves this module: messages name a storage by `shown`, and what a driver says is searched for it.
"""

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy.engine import make_url

from zbench.errors import ExitCode, UsageError, ZbenchError
from zbench.masking import masked

JOURNAL = "study.journal"
OUTAGE_SECONDS = 120.0
"""How long a worker waits for a database that is away, before it ends with what it has."""

_CONNECT_SECONDS = 8
_OUTAGE_PAUSE = 1.0
_TABLE_ATTEMPTS, _TABLE_PAUSE = 5, 0.4
_UNKNOWN_URL = "expected a storage such as postgresql://user@host/database or sqlite:///file"
_NO_CONNECTION = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    sqlalchemy.exc.DisconnectionError,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Signs of life of the workers of a shared study, in seconds: how often, and when one is given up."""

    pace: int = 10
    grace: int = 45


DEFAULT_HEARTBEAT = Heartbeat()


class StudyStorageError(ZbenchError):
    """The study's storage cannot be reached or cannot be read; finished trials are in the run directory."""

    exit_code = ExitCode.USAGE


class _LockOfRun(JournalFileOpenLock):
    """The lock of the run directory, which this process holds; a file of Optuna's would outlive a kill."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Keep the lock: the run directory releases it."""


class _JournalWithoutSecrets(JournalFileBackend):
    """A journal file in which secrets are masked, as in the records beside it."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        super().append_logs(masked(logs))


def journal_storage(path: Path) -> JournalStorage:
    """Begin a journal file anew, for Optuna's tools: the records beside it are what a search resumes from."""
    path.unlink(missing_ok=True)
    return JournalStorage(_JournalWithoutSecrets(str(path), lock_obj=_LockOfRun(str(path))))


def relational_storage(url: str, heartbeat: Heartbeat = DEFAULT_HEARTBEAT) -> RDBStorage:
    """Connect to a database by SQLAlchemy's URL, with heartbeats so that trials of lost workers are noticed.

    UsageError for a URL that is none, StudyStorageError if the database cannot be reached.
    """
    full = _with_driver(url)
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if full.startswith("postgresql"):
        arguments["connect_args"] = {"connect_timeout": _CONNECT_SECONDS}

    def connect() -> RDBStorage:
        pace, grace = heartbeat.pace, heartbeat.grace
        return RDBStorage(full, engine_kwargs=arguments, heartbeat_interval=pace, grace_period=grace)

    with warnings.catch_warnings(), reaching(url):
        warnings.simplefilter("ignore")  # a driver may quote the URL
        for _ in range(_TABLE_ATTEMPTS - 1):
            try:
                return connect()
            except sqlalchemy.exc.DBAPIError as error:
                if "already exists" not in str(error):  # else another worker made the tables at this moment
                    raise
                time.sleep(_TABLE_PAUSE)
        return connect()


def require_existing(url: str) -> None:
    """Raise UsageError for a database file that is not there: opening it would make an empty one."""
    parsed = make_url(_with_driver(url))
    is_file = parsed.drivername.startswith("sqlite") and parsed.database not in (None, "", ":memory:")
    if is_file and not Path(str(parsed.database)).exists():
        raise UsageError(
            f"{shown(url)}: there is no such file; start the study with `zbench tune FILE --storage` first"
        )


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn a database's failures into one clear message without its password."""
    try:
        yield
    except ImportError:
        remedy = 'pip install "zbench[postgres]"' if url.startswith("postgres") else "install it with pip"
        raise UsageError(f"{shown(url)}: the driver of this database is not installed; {remedy}") from None
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        raise StudyStorageError(
            f"cannot use storage {shown(url)}: {_reason(error, url)}; check that the server runs, "
            "the database exists and the user may enter"
        ) from None


class Outages:
    """Tries operations again while the database is away. Each must be safe to repeat: it may have been done.

    tell: called once an outage that is waited for.
    """

    def __init__(self, tell: Callable[[str], None], seconds: float = OUTAGE_SECONDS) -> None:
        self._tell, self._seconds = tell, seconds
        self._last = float("-inf")

    def outlast(self, operation: Callable[[], T]) -> T:
        """Return what the operation returns; its last failure where the outage is too long."""
        give_up = time.monotonic() + self._seconds
        while True:
            try:
                return operation()
            except Exception as error:
                if not is_outage(error) or time.monotonic() > give_up:
                    raise
            if not self.was_within(self._seconds):
                self._tell(f"the study's database is away; trying again for {self._seconds:.0f} s")
            self.note()
            time.sleep(_OUTAGE_PAUSE)

    def note(self) -> None:
        """Remember that the database is away now."""
        self._last = time.monotonic()

    def was_within(self, seconds: float) -> bool:
        """Whether the database was away in the last so many seconds."""
        return time.monotonic() - self._last < seconds


def is_outage(error: BaseException | None) -> bool:
    """Whether an operation failed because there was no connection, as its causes say."""
    while error is not None:
        if isinstance(error, _NO_CONNECTION):
            return True
        error = error.__cause__ or error.__context__
    return False


def shown(url: str) -> str:
    """Return a storage URL as it may be printed: without password and options."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except Exception:  # not a URL, so there is no telling where a password stands
        scheme = re.match(r"[a-z0-9+]+://", url)
        return f"{scheme[0]}..." if scheme else "this text"


def redacted(text: str, url: str) -> str:
    """Return a text without the passwords of a storage URL, as written or percent-decoded."""
    parsed = make_url(url)
    written = re.search(r"://[^:/@]*:([^@]*)@", url)
    secrets = {parsed.password, written and written[1]}
    secrets |= {value for key, value in parsed.query.items() if "pass" in key.lower()}
    for secret in sorted((str(secret) for secret in secrets if secret), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the passwords of URLs in it; a URL goes to the end of its argument."""
    url = re.compile(r"(?s)[A-Za-z][A-Za-z0-9+]*://.+")
    return [url.sub(lambda match: shown(match[0]), argument) for argument in arguments]


def _with_driver(url: str) -> str:
    """Return the URL as SQLAlchemy wants it, with the driver that the `postgres` extra installs."""
    try:
        parsed = make_url(re.sub(r"^postgres://", "postgresql://", url))
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise UsageError(f"{shown(url)} is no storage URL: {_UNKNOWN_URL}") from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        parsed.get_dialect()
    except Exception:
        kind = parsed.drivername
        raise UsageError(f"{shown(url)}: unknown kind of database {kind!r}; {_UNKNOWN_URL}") from None
    return parsed.render_as_string(hide_password=False)


def _reason(error: BaseException, url: str) -> str:
    """Return the driver's own words, in one line and without the password."""
    while (cause := getattr(error, "orig", None) or error.__cause__) is not None:
        error = cause
    return redacted(" ".join(str(error).split()) or type(error).__name__, url)
