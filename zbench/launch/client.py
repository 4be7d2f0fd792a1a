"""The launcher's end of the warm server."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing import connection
from pathlib import Path
from typing import IO, NoReturn

from zbench.errors import ZbenchError
from zbench.launch import preload
from zbench.launch.guard import KILLED
from zbench.launch.interpreter import server_command, server_environment
from zbench.launch.messages import (
    DumpStacks,
    EndGroup,
    Exited,
    GroupGone,
    RankStart,
    Ready,
    Started,
    StartGroup,
)

_START_SECONDS = 300.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.01


class ServerLostError(Exception):
    """The warm server died, and every rank with it. Not the fault of the trial that was running."""


class WarmServer(AbstractContextManager["WarmServer"]):
    """A server process that forks groups of ranks; a context manager. One group at a time."""

    def __init__(self, modules: tuple[str, ...], scratch: Path, python: Path | None = None) -> None:
        """Start the process; it loads `modules` meanwhile, and `wait_until_ready` waits for it.

        scratch: a directory of temporary files; the server removes it if this process dies. python: the
        interpreter, if not the running one.
        """
        ours, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  read when the server fails
        command = [*server_command(python), str(theirs.fileno()), str(scratch), *modules]
        environment = preload.environment(dict(os.environ), os.cpu_count() or 1)
        self._process = subprocess.Popen(
            command,
            env=server_environment(python, environment),
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

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.wait_until_ready().pid

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

    def start_group(self, target: str, ranks: list[RankStart]) -> tuple[int, ...]:
        """Fork one process for each start and return their pids. ServerLostError if the server is gone."""
        self.wait_until_ready()
        self._send(StartGroup(target, tuple(ranks)))
        message = self._receive(_END_SECONDS)
        if message is None:  # it is stopped
            self._lost()
        assert isinstance(message, Started)
        self._group = message.pids[0]
        return message.pids

    def next_event(self, timeout: float) -> Exited | GroupGone | None:
        """Return what happened to the group next, or None after `timeout` seconds."""
        message = self._receive(timeout)
        assert message is None or isinstance(message, Exited | GroupGone)
        if isinstance(message, GroupGone):
            self._group = None
        return message

    def dump_stacks(self) -> None:
        """Have every living rank write its Python stacks to its log."""
        self._send(DumpStacks())

    def end_group(self, on_event: Callable[[Exited | GroupGone], None]) -> None:
        """Kill what is left of the group and return when it is gone. ServerLostError if the server is."""
        if self._group is None:
            return
        self._send(EndGroup())
        while self._group is not None:
            event = self.next_event(_END_SECONDS)
            if event is None:
                self._lost()
            on_event(event)

    def close(self) -> None:
        """End the server and whatever it started. It ends its group itself once it has imported all."""
        self._connection.close()
        if self.ready is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self._kill_all()
        self._errors.close()

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError, OSError):
            self._lost()

    def _receive(self, timeout: float) -> object:
        try:
            return self._connection.recv() if self._connection.poll(timeout) else None
        except (EOFError, ConnectionResetError, OSError):
            self._lost()

    def _lost(self) -> NoReturn:
        self._kill_all()
        raise ServerLostError

    def _kill_all(self) -> None:
        """Have the guard kill the server and all that it left; kill what does not end."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._process.returncode is None or self._process.returncode < 0:  # the guard hangs or was killed
            self._kill_session()
        self._group = None
        self._process.wait()

    def _kill_session(self) -> None:
        """Give a server without its guard the time to end all that it started, then kill what is left."""
        give_up = time.monotonic() + _END_SECONDS
        with suppress(ProcessLookupError, PermissionError):
            while self._process.returncode is not None and time.monotonic() < give_up:
                os.killpg(self._process.pid, 0)
                time.sleep(_POLL_SECONDS)
        for process_group in filter(None, (self._process.pid, self._group)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process_group, signal.SIGKILL)

    def _last_words(self) -> str:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"it ended with status {self._process.poll()}"

    def __exit__(self, *_: object) -> None:
        self.close()
