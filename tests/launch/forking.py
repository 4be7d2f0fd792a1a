"""Trial servers as forks of a template process that all test processes of a run share."""

import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from zbench.launch import client, preload
from zbench.launch.interpreter import server_command, server_environment

PROGRAM = Path(__file__).with_name("template.py")
_START_SECONDS = 120.0
_MOST_BYTES = 1 << 10


class Forked:
    """A process that the template forked and waits for: what a server's client uses of `subprocess.Popen`."""

    def __init__(self, teller: socket.socket) -> None:
        """teller: says first the process id, then the exit status."""
        self._teller = teller
        self.returncode: int | None = None
        self.pid = self._told(None)

    def _told(self, timeout: float | None) -> int:
        if not select.select([self._teller], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked trial server", timeout or 0.0)
        message = self._teller.recv(_MOST_BYTES)
        assert message, "the template of trial servers has ended"
        return int(pickle.loads(message))

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; subprocess.TimeoutExpired if it is not there in time."""
        if self.returncode is None:
            self.returncode = self._told(timeout)
            self._teller.close()
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM to a process that runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


class Template:
    """This process's line to the template, which the first to need one starts and the last line ends."""

    def __init__(self) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        self._address = Path(tempfile.gettempdir(), f"zbench-tests-{run}")
        self._line: socket.socket | None = None

    @contextmanager
    def starts_servers(self) -> Iterator[None]:
        """Have each `WarmServer` that is begun in this block forked, if it loads torch here."""
        shown = SimpleNamespace(**vars(subprocess) | {"Popen": self._popen})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "subprocess", shown)
            yield

    def _popen(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **more: Any) -> Any:
        usual = server_command(None)
        launcher, scratch, *modules = command[-len(command) + len(usual) :]
        if command[: len(usual)] != usual or tuple(modules[: len(preload.MODULES)]) != preload.MODULES:
            return subprocess.Popen(command, env=env, stdout=stdout, **more)
        loaded = tuple(module for module in modules if module != preload.HUGE_PAGES)
        request = pickle.dumps((loaded, scratch, tuple(modules), env, os.getcwd()))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._connected(), [request], [int(launcher), stdout.fileno(), theirs.fileno()])
        return Forked(ours)

    def _connected(self) -> socket.socket:
        """Return the line to the template, started if there is none."""
        if self._line is None:
            with Path(f"{self._address}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._line = self._reached() or self._started()
        return self._line

    def _reached(self) -> socket.socket | None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.connect(str(self._address))
        except OSError:
            line.close()
            return None
        return line

    def _started(self) -> socket.socket:
        self._address.unlink(missing_ok=True)
        environment = server_environment(None, preload.environment(dict(os.environ), os.cpu_count() or 1))
        command = [sys.executable, "-P", str(PROGRAM), str(self._address), *preload.MODULES]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        give_up = time.monotonic() + _START_SECONDS
        while (line := self._reached()) is None:
            assert process.poll() is None, "the template of trial servers did not start"
            assert time.monotonic() < give_up, "the template of trial servers takes too long to start"
            time.sleep(0.05)
        return line

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None
