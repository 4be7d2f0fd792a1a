"""The launcher's end of the trial server: its messages, and the groups of ranks that it starts."""

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
from multiprocessing import connection, reduction
from pathlib import Path
from typing import IO

import psutil

import zbench
from zbench import _inside
from zbench.errors import TrialsFailedError, ZbenchError
from zbench.job.messages import (
    EndGroup,
    Exited,
    GroupGone,
    KeeperFailed,
    RankStart,
    Ready,
    Started,
    StartGroup,
)
from zbench.launch.process.reaper import KILLED
from zbench.launch.turns import TurnGate
from zbench.spec.environments import extensions_directory

PEER_GRACE_SECONDS = 2.0
"""Seconds that the other ranks may continue after one failed, to report why; most only wait for that rank."""

THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Prefixes of environment variables that ranks do not inherit: the trial sets thread counts."""

_ROOT = Path(zbench.__file__).parents[1]
_INSTALLED = _ROOT.name in ("site-packages", "dist-packages")
_OF_ANOTHER_PYTHON = ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_START_SECONDS = 300.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 2.0
"""The most that one poll adds to the time of a group: this process can be stopped, for however long."""

StopWhen = Callable[[], str | None]


@dataclass(slots=True)
class GroupEnd:
    """How a group ended. exits: rank -> exit status (-n for signal n) of the ranks that ended by themselves.

    suspended: a rank that a signal had stopped at the deadline. stopped: the reason that `stop_when` gave.
    """

    ranks: int
    exits: dict[int, int] = field(default_factory=dict)
    timed_out: bool = False
    suspended: int | None = None
    stopped: str | None = None
    cpu_seconds: float = 0.0
    peak_rss_bytes: int | None = None


class ServerLostError(Exception):
    """The trial server died, and every rank with it; the trial that was running is not the cause.

    Its text says why a process of zbench's could not go on; it is empty for one that was killed.
    """


class KeeperLostError(ServerLostError):
    """The keeper of one group could not go on, and has ended its ranks; the server and other groups live."""


class StoppableClock:
    """Counts seconds from poll to poll, but not the time in which this process itself was stopped."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = time.monotonic()

    def poll(self) -> float:
        """Return the seconds since the clock was made."""
        now = time.monotonic()
        self.seconds += min(now - self._last, _LONGEST_POLL_SECONDS)
        self._last = now
        return self.seconds


class RankGroup:
    """The launcher's view of the processes of one trial, which `WarmServer.start_group` starts.

    It exists before them, so that its owner can end them if their start is interrupted. deadline: the seconds
    that they may run, without the time that they wait for turns. stop_when: polled while they run, and once
    afterwards; if it returns a reason, they are ended. seconds: how long they ran.
    """

    def __init__(self, ranks: int, deadline: float, stop_when: StopWhen) -> None:
        ours, self._keepers_end = socket.socketpair()
        self._keeper: connection.Connection[object, object] = connection.Connection(ours.detach())
        self._left, self._stop_when = deadline, stop_when
        self._pids: tuple[int, ...] = ()
        self.seconds = 0.0
        self.end = GroupEnd(ranks)
        self.is_gone = True

    def start(self, hand_over: Callable[[int], None]) -> None:
        """Return when all ranks have been forked; ServerLostError if the server dies first.

        hand_over: requests the ranks, and gives their keeper the other end of this group's socket.
        """
        self.is_gone = False
        with self._keepers_end:
            hand_over(self._keepers_end.fileno())
        message = self._receive(_END_SECONDS)
        if not isinstance(message, Started):  # the server is stopped
            raise ServerLostError
        self._pids = message.pids

    def advance(self, gate: TurnGate | None = None) -> None:
        """Return when all ranks wait at `gate`, or when none of them is left.

        ServerLostError if keeper or server died. While the ranks wait, their processes are stopped: gloo's
        threads would wake up a hundred times a second, beside the participant that is timed.
        """
        clock = StoppableClock()
        if gate is not None:
            self._signal(signal.SIGCONT)
        waits = self._watch(clock, gate)
        self._left -= clock.poll()
        self.seconds += clock.seconds
        if waits:
            self._signal(signal.SIGSTOP)
            return
        self.end.suspended = _suspended(self._pids) if self.end.timed_out else None
        self._finish()
        if self.end.stopped is None:
            self._stop_when()  # shows what came after the last poll; nothing is left to be ended

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pids[0], number)

    def close(self) -> None:
        """Have the keeper end the group's remaining processes, and return when they have ended."""
        self._keepers_end.close()
        with suppress(ServerLostError):
            self._finish()
        self._keeper.close()

    def _watch(self, clock: StoppableClock, gate: TurnGate | None) -> bool:
        """Return True when all ranks wait at `gate`, False when the group has ended or must be ended.

        What has arrived is looked at before the clock: this process may have been stopped meanwhile.
        """
        deadline = give_up = self._left
        while not self.is_gone:
            if gate is not None and gate.all_wait:
                return True
            remaining = give_up - clock.poll()
            waitable: list[connection.Connection[object, object] | socket.socket] = [self._keeper]
            waitable += gate.waitable() if gate is not None else []
            ready = connection.wait(waitable, max(min(remaining, _POLL_SECONDS), 0.0))
            if not ready and remaining <= 0:
                self.end.timed_out = give_up == deadline
                return False
            if gate is not None:
                gate.receive(ready)
            if self._keeper in ready:
                event = self._next_event(0.0)
                if isinstance(event, Exited):
                    self.end.exits[event.rank] = event.code
                    if event.code != 0:
                        give_up = min(give_up, clock.poll() + PEER_GRACE_SECONDS)
            elif not ready and (reason := self._stop_when()):
                self.end.stopped = reason
                return False
        return False

    def _finish(self) -> None:
        """Kill the group's remaining processes and return when they have ended."""
        if not self.is_gone:
            self._send(EndGroup(dump_stacks=self.end.timed_out))
        while not self.is_gone:
            if self._next_event(_END_SECONDS) is None:
                raise ServerLostError

    def _next_event(self, timeout: float) -> object:
        """Return the group's next event, None after `timeout` seconds."""
        message = self._receive(timeout)
        if isinstance(message, GroupGone):
            self.is_gone = True
            self.end.cpu_seconds, self.end.peak_rss_bytes = message.cpu_seconds, message.peak_rss_bytes
        return message

    def _send(self, message: object) -> None:
        with suppress(OSError):  # a keeper that is gone has said so, or is missed when it should answer
            self._keeper.send(message)

    def _receive(self, timeout: float) -> object:
        try:
            message = self._keeper.recv() if self._keeper.poll(timeout) else None
        except (EOFError, OSError):
            raise ServerLostError from None
        if isinstance(message, KeeperFailed):
            self.is_gone = True
            raise KeeperLostError(message.reason)
        return message


class WarmServer:
    """A server process that forks groups of ranks."""

    def __init__(self, modules: tuple[str, ...], scratch: Path, python: Path | None = None) -> None:
        """Start the process; it loads `modules` meanwhile, and `wait_until_ready` waits for it.

        scratch: a directory of temporary files; the server removes it if this process dies. python: the
        interpreter, if not the running one.
        """
        ours, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  read when the server fails
        self._process = subprocess.Popen(
            [*_command(python), str(theirs.fileno()), str(scratch), *modules],
            env=server_environment(python, os.environ) | own_temporary_directory(scratch),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        theirs.close()
        self._connection: connection.Connection[object, object] = connection.Connection(ours.detach())
        self.ready: Ready | None = None
        self._reason = ""

    def wait_until_ready(self) -> Ready:
        """Return when everything is imported; ZbenchError with the server's last words if it cannot start.

        ServerLostError if it was killed meanwhile, TrialsFailedError if it is too slow.
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
                raise TrialsFailedError(
                    f"the trial server did not start within {_START_SECONDS:g} s: other work keeps this"
                    " machine busy, or the file system of Python's packages is slow; try again when the"
                    " machine is less loaded, or install zbench on a local disk"
                )
            self.ready = message
        return self.ready

    def start_group(self, group: RankGroup, target: str, ranks: Sequence[RankStart]) -> None:
        """Start one process for each of `ranks`; ServerLostError if the server died."""

        def hand_over(handle: int) -> None:
            try:
                self._connection.send(StartGroup(target, tuple(ranks)))
                reduction.send_handle(self._connection, handle, self._process.pid)
            except OSError:
                raise ServerLostError from None

        self.wait_until_ready()
        group.start(hand_over)

    def close(self) -> None:
        """End the server and all that it started. The server does this itself if its imports are complete."""
        self._connection.close()
        if self.ready is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self.kill()

    def kill(self) -> str:
        """End a server that does not answer, and whatever it started; its scratch directory stays.

        Returns why it had ended by itself, if it had, also where it was killed before.
        """
        if not self._errors.closed:
            self._kill_all()
            self._reason = self._last_words() if self._process.returncode == 1 else ""
            self._connection.close()
            self._errors.close()
        return self._reason

    def _receive(self, timeout: float) -> object:
        try:
            return self._connection.recv() if self._connection.poll(timeout) else None
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)  # a signal would hide how the server ended
            self._kill_all()
            raise ServerLostError from None

    def _kill_all(self) -> None:
        """Have the reaper kill the server and its remaining processes; kill the reaper if it hangs."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._process.returncode is None or self._process.returncode < 0:  # it hangs or was killed
            with suppress(psutil.Error):
                if self.ready is not None:  # without its reaper the server itself ends all that it started
                    psutil.Process(self.ready.pid).wait(_END_SECONDS)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _last_words(self) -> str:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"it ended with status {self._process.poll()}"


def own_temporary_directory(scratch: Path) -> dict[str, str]:
    """Return the variables that give a server and its ranks a temporary directory of their own.

    torch includes precompiled headers, and loads code, from names below the temporary directory that another
    user could take first. It reads these variables when it is imported.
    """
    folder = scratch / "tmp"
    folder.mkdir(0o700, exist_ok=True)
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


def server_environment(python: Path | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a trial server; the running interpreter's name this zbench.

    Another environment compiles its extensions in its own directory: in torch's directory, two versions of
    DeepSpeed would overwrite each other's extensions.
    """
    env = {key: value for key, value in inherited.items() if not key.startswith(THREAD_VARIABLES)}
    env |= {
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "OMP_DYNAMIC": "FALSE",
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads in the server, and fork would lose them
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for devices must not start CUDA before a fork
        "CUBLAS_WORKSPACE_CONFIG": env.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),  # else not deterministic
    }
    if python is not None:
        for name in _OF_ANOTHER_PYTHON:
            env.pop(name, None)
        path = os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)])
        if "TORCH_EXTENSIONS_DIR" not in env:
            env["TORCH_EXTENSIONS_DIR"] = str(extensions_directory(python))
        return env | {"PATH": path}
    if _INSTALLED:
        return env
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), env.get("PYTHONPATH"))))}


def _command(python: Path | None) -> list[str]:
    """Return the command line of the trial server, without arguments."""
    module = "zbench.launch.process.server"
    if python is None:
        return [sys.executable, "-P", "-m", module]
    return [str(python), "-P", _inside.__file__, "run", os.pathsep.join(zbench.__path__), module]


def _suspended(pids: Sequence[int]) -> int | None:
    """Return the first rank whose process is stopped, None if there is none."""
    for rank, pid in enumerate(pids):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return rank
    return None
