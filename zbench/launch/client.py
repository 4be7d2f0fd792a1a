"""The launcher's end of the trial server: its messages, and one group of ranks at a time."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import IO, NoReturn

import psutil

import zbench
from zbench.errors import ZbenchError
from zbench.launch import foreign_env
from zbench.launch.reaper import KILLED
from zbench.spec.environments import extensions_directory, lendable

PEER_GRACE_SECONDS = 2.0
"""How long the other ranks may go on after one failed: they may say why, but mostly wait for it in vain."""

THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What variables begin with that are not passed on: thread counts are the trial's to set."""

_ROOT = Path(__file__).parents[2]
_INSTALLED = _ROOT.name in ("site-packages", "dist-packages")
_OF_ANOTHER_PYTHON = ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_START_SECONDS = 300.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.05

StopWhen = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class RankStart:
    """How one process of a group begins.

    job: the pickled argument of the target. log: the file that takes stdout and stderr. error: where an
    escaped exception is written (`zbench.worker.job.write_error`), as (result path, rank). cpus: the cores
    it may use, None for all.
    """

    job: bytes
    log: str
    error: tuple[str, int | str]
    cpus: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Fork one process for each start, all in one process group, to call `target` (`module:function`)."""

    target: str
    ranks: tuple[RankStart, ...]


@dataclass(frozen=True, slots=True)
class EndGroup:
    """Kill what is left of the group. dump_stacks: every rank first writes its Python stacks to its log."""

    dump_stacks: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The server has imported everything; `seconds` it took, `problems` are imports that failed."""

    seconds: float
    problems: tuple[str, ...]
    pid: int


@dataclass(frozen=True, slots=True)
class Started:
    """The group runs; pids in rank order, the first one is the process group."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exited:
    """One rank ended. code: its exit status; -n for signal n."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class GroupGone:
    """No process of the group, nor any that it started, is left. cpu_seconds: what all of them used."""

    cpu_seconds: float


@dataclass(slots=True)
class GroupEnd:
    """How a group ended. exits: rank -> exit status (-n for signal n) of those that ended by themselves.

    suspended: a rank that was stopped by a signal when the deadline came. stopped: why `stop_when` ended it.
    """

    ranks: int
    exits: dict[int, int] = field(default_factory=dict)
    timed_out: bool = False
    suspended: int | None = None
    stopped: str | None = None
    cpu_seconds: float = 0.0


class ServerLostError(Exception):
    """The trial server died, and every rank with it. Not the fault of the trial that was running."""


class WarmServer:
    """A server process that forks groups of ranks, one group at a time."""

    def __init__(self, modules: tuple[str, ...], scratch: Path, python: Path | None = None) -> None:
        """Start the process; it loads `modules` meanwhile, and `wait_until_ready` waits for it.

        scratch: a directory of temporary files; the server removes it if this process dies. python: the
        interpreter, if not the running one.
        """
        ours, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  read when the server fails
        self._process = subprocess.Popen(
            [*_command(python), str(theirs.fileno()), str(scratch), *modules],
            env=server_environment(python, os.environ),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        theirs.close()
        self._connection: connection.Connection[object, object] = connection.Connection(ours.detach())
        self._group: int | None = None
        self.ready: Ready | None = None
        self.is_idle = True

    def wait_until_ready(self) -> Ready:
        """Return when everything is imported; ZbenchError with the server's last words if it cannot start.

        ServerLostError if it was killed meanwhile.
        """
        if self.ready is None:
            try:
                message = self._receive(_START_SECONDS)
            except ServerLostError:
                reason = self._last_words()
                self.close()
                if self._process.returncode < 0 or self._process.returncode > KILLED:
                    raise
                raise ZbenchError(f"the trial server did not start: {reason}") from None
            if not isinstance(message, Ready):
                self.close()
                raise ZbenchError(
                    f"the trial server did not start within {_START_SECONDS:g} s: other work keeps this"
                    " machine busy; try again when there is less of it"
                )
            self.ready = message
        return self.ready

    def run_group(
        self, target: str, ranks: Sequence[RankStart], *, deadline: float, stop_when: StopWhen = lambda: None
    ) -> GroupEnd:
        """Start the ranks and return when none of them is left, after `deadline` seconds at the latest.

        stop_when: polled while the group runs, and once after it ended by itself; a reason ends the group.
        Whatever interrupts this call ends the server and so the group. ServerLostError if the server died.
        """
        self.wait_until_ready()
        self.is_idle = False
        end, give_up = GroupEnd(len(ranks)), time.monotonic() + deadline
        try:
            pids = self._start_group(target, ranks)
            self._watch(end, give_up, stop_when)
            end.suspended = _suspended(pids) if end.timed_out else None
            self._end_group(end)
            if end.stopped is None:
                stop_when()  # shows what came after the last poll; nothing is left to be ended
        except BaseException:
            self.close()  # an interrupted conversation cannot be taken up again
            raise
        self.is_idle = True
        return end

    def close(self) -> None:
        """End the server and whatever it started. It ends its group itself once it has imported all."""
        self._connection.close()
        if self.ready is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self._kill_all()
        self._errors.close()

    def _start_group(self, target: str, ranks: Sequence[RankStart]) -> tuple[int, ...]:
        """Fork one process for each start and return their pids."""
        self._send(StartGroup(target, tuple(ranks)))
        message = self._receive(_END_SECONDS)
        if message is None:  # it is stopped
            self._lost()
        assert isinstance(message, Started)
        self._group = message.pids[0]
        return message.pids

    def _watch(self, end: GroupEnd, deadline: float, stop_when: StopWhen) -> None:
        """Return when the group is gone, or has to be ended."""
        give_up = deadline
        while self._group is not None:
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                end.timed_out = give_up == deadline
                return
            event = self._next_event(end, min(remaining, _POLL_SECONDS))
            if isinstance(event, Exited):
                end.exits[event.rank] = event.code
                if event.code != 0:
                    give_up = min(give_up, time.monotonic() + PEER_GRACE_SECONDS)
            elif event is None and (reason := stop_when()):
                end.stopped = reason
                return

    def _end_group(self, end: GroupEnd) -> None:
        """Kill what is left of the group and return when it is gone."""
        if self._group is None:
            return
        self._send(EndGroup(dump_stacks=end.timed_out))
        while self._group is not None:
            if self._next_event(end, _END_SECONDS) is None:
                self._lost()

    def _next_event(self, end: GroupEnd, timeout: float) -> Exited | GroupGone | None:
        """Return what happened to the group next, or None after `timeout` seconds."""
        message = self._receive(timeout)
        assert message is None or isinstance(message, Exited | GroupGone)
        if isinstance(message, GroupGone):
            self._group, end.cpu_seconds = None, message.cpu_seconds
        return message

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError:
            self._lost()

    def _receive(self, timeout: float) -> object:
        try:
            return self._connection.recv() if self._connection.poll(timeout) else None
        except (EOFError, OSError):
            self._lost()

    def _lost(self) -> NoReturn:
        self._kill_all()
        raise ServerLostError

    def _kill_all(self) -> None:
        """Have the reaper kill the server and all that it left; kill what does not end."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._process.returncode is None or self._process.returncode < 0:  # it hangs or was killed
            with suppress(psutil.Error):
                if self.ready is not None:  # without its reaper the server itself ends all that it started
                    psutil.Process(self.ready.pid).wait(_END_SECONDS)
            for process_group in filter(None, (self._process.pid, self._group)):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process_group, signal.SIGKILL)
        self._group = None
        self._process.wait()

    def _last_words(self) -> str:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"it ended with status {self._process.poll()}"


def server_environment(python: Path | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a trial server; under the running interpreter they lead to this zbench.

    Another environment compiles its extensions in a place of its own: two versions of DeepSpeed would replace
    one another's in torch's.
    """
    kept = {key: value for key, value in inherited.items() if not key.startswith(THREAD_VARIABLES)}
    kept |= {
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "OMP_DYNAMIC": "FALSE",
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads in the server, and fork would lose them
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for devices must not start CUDA before a fork
    }
    if python is not None:
        for name in _OF_ANOTHER_PYTHON:
            kept.pop(name, None)
        path = os.pathsep.join([str(python.parent), kept.get("PATH", os.defpath)])
        return {"TORCH_EXTENSIONS_DIR": str(extensions_directory(python, inherited))} | kept | {"PATH": path}
    if _INSTALLED:
        return kept
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))}


def _command(python: Path | None) -> list[str]:
    """Return the command that is the trial server, without its arguments."""
    if python is None:
        return [sys.executable, "-P", "-m", "zbench.launch.server"]
    places = {"zbench": list(zbench.__path__), "lent": lendable()}
    return [str(python), "-P", foreign_env.__file__, json.dumps(places)]


def _suspended(pids: Sequence[int]) -> int | None:
    """Return the first rank whose process is stopped, None where all run."""
    for rank, pid in enumerate(pids):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return rank
    return None
