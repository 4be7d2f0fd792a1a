"""Which sweep a study belongs to, and which process of which machine works on it."""

import contextlib
import datetime
import hashlib
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from zbench.errors import UsageError
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec, sweep_document

_SCHEMA_VERSION = 1
_NOT_IDENTITY = ("search", "machine")
_STARTING_SECONDS = 60.0
_SAME_START = 2.0
"""Seconds within which two looks at a process find the same start: the time of boot is told in whole ones."""


@dataclass(frozen=True, slots=True)
class StudyIdentity:
    """A sweep as its study keeps it. Two sweeps that differ only in how they search share a study."""

    sweep: SweepSpec

    def to_json(self) -> dict[str, Any]:
        """Return what a study keeps."""
        return {"schema_version": _SCHEMA_VERSION, "digest": self.digest, "sweep": sweep_document(self.sweep)}

    @property
    def digest(self) -> str:
        """Return 12 hex digits over everything but the way of searching."""
        document = {k: v for k, v in sweep_document(self.sweep).items() if k not in _NOT_IDENTITY}
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def require_same(self, known: Any, name: str) -> None:
        """Raise UsageError unless a study's own identity is this one, naming what differs."""
        other = StudyIdentity.of_study(known, name)
        if other.digest == self.digest:
            return
        mine, theirs = sweep_document(self.sweep), sweep_document(other.sweep)
        differing = sorted(k for k in {*mine, *theirs} - set(_NOT_IDENTITY) if mine.get(k) != theirs.get(k))
        raise UsageError(
            f"study {name!r} searches another sweep ({other.sweep.name}): {', '.join(differing)} differ; "
            "choose another name with --study, or use that sweep's file"
        )

    @classmethod
    def of_study(cls, known: Any, name: str) -> "StudyIdentity":
        """Return the sweep that a study keeps; UsageError where zbench did not make it."""
        if not isinstance(known, dict) or "sweep" not in known:
            raise UsageError(f"study {name!r} was not made by zbench; choose another name with --study")
        if known.get("schema_version", _SCHEMA_VERSION) > _SCHEMA_VERSION:
            raise UsageError(f"study {name!r} was made by a newer zbench; update zbench on this host")
        return cls(sweep_from_mapping(known["sweep"], environ={}, source=f"study {name}"))


@dataclass(frozen=True, slots=True)
class Worker:
    """This process: enough to tell later, on the same machine, whether it still lives.

    place: the machine as booted, and the namespace in which `pid` counts. started: seconds from the boot to
    the start of the process. heartbeat: seconds between signs of life, where the storage keeps them; None
    where it does not. trial_seconds: how long one trial can take at most.
    """

    place: str
    pid: int
    started: float
    fingerprint: str
    heartbeat: float | None = None
    trial_seconds: float = math.inf

    @classmethod
    def here(
        cls, fingerprint: str, *, heartbeat: float | None = None, trial_seconds: float = math.inf
    ) -> "Worker":
        """Describe the calling process."""
        pid = os.getpid()
        return cls(_place(), pid, started_after_boot(pid), fingerprint, heartbeat, trial_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return what others may know of this worker."""
        return {"place": self.place, "pid": self.pid, "started": self.started}

    def knows_to_be_gone(self, other: Any, since: datetime.datetime | None) -> bool:
        """Whether the worker that began a trial at `since` cannot be running it any more.

        On this host its process is looked up. Where a storage keeps heartbeats, those decide for other hosts;
        where it does not, a trial is given up when it has taken longer than any trial may.
        """
        now = datetime.datetime.now()
        age = (now - (since or now)).total_seconds()
        if not isinstance(other, dict):
            return age > _STARTING_SECONDS  # it died before it could leave its name
        if other.get("place") == self.place:
            return not _is_alive(int(other["pid"]), float(other["started"]))
        return self.heartbeat is None and age > 2 * self.trial_seconds + _STARTING_SECONDS

    @contextlib.contextmanager
    def heartbeats(self, beat: Callable[[], None]) -> Iterator[None]:
        """Call `beat` at this worker's pace in a thread of its own while the body runs."""
        if self.heartbeat is None:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=_beat_until, args=(done, beat, self.heartbeat), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _place() -> str:
    """Return what two processes share exactly if their process ids can be compared."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    booted = boot.read_text().strip() if boot.exists() else str(psutil.boot_time())
    return f"{socket.gethostname()}/{booted}/{namespace.stat().st_ino if namespace.exists() else ''}"


def _beat_until(done: threading.Event, beat: Callable[[], None], pace: float) -> None:
    while not done.wait(pace):
        with contextlib.suppress(
            Exception
        ):  # a missed beat is made up by the next; a lost storage shows elsewhere
            beat()


def started_after_boot(pid: int) -> float:
    """Return when a process was started, in seconds from the boot: a clock that is set does not move it.

    psutil.Error where there is no such process.
    """
    return psutil.Process(pid).create_time() - psutil.boot_time()


def _is_alive(pid: int, started: float) -> bool:
    try:
        is_same = abs(started_after_boot(pid) - started) < _SAME_START
        return is_same and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
