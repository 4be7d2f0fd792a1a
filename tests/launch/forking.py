"""Python processes of tests as forks of one that has imported what they need (`template`)."""

import contextlib
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

PROGRAM = Path(__file__).with_name("template.py")
MOST_BYTES = 1 << 20
"""Of one request: the variables of a process, and some words."""
START_SECONDS = 120.0
USUAL = subprocess.Popen

SERVER, LAUNCHER, SIMULATOR = "zbench.launch.server", "torch.distributed.run", "zbench.estimate"
STARTS_ITSELF = (SERVER, LAUNCHER)
"""What these start is to be as they start it: children of a rank; workers that import torch themselves."""
TORCH = ("zbench.worker.preload", "zbench.worker.main")
DYNAMO = ("torch._dynamo",)
"""As many trial servers load it: a simulation needs it, too."""
OTHERS = (
    *(SERVER, "zbench.launch.slurm_rank", "zbench.launch.local", "zbench.worker.job", "zbench.tune.session"),
    *("zbench.cli.sweep", "zbench.cli.tune", "zbench.cli.worker", "optuna.storages._rdb.storage", "alembic"),
    *("sqlalchemy", "psycopg", "submitit.core.submission", "submitit.local.local"),
)
"""What all processes have imported that load no torch."""


def loads(words: Sequence[str], *, torch: bool) -> tuple[tuple[str, ...], ...]:
    """Return what is imported for a command before it is forked: for a trial server, what it would load.

    torch: whether other commands need it. Those that begin with the same groups of modules share a process
    that has imported these.
    """
    modules = tuple(words[words.index(SERVER) + 3 :]) if SERVER in words else ()
    if modules[: len(TORCH)] == TORCH:
        return (TORCH, *((module,) for module in modules[len(TORCH) :] if ":" not in module))
    if SIMULATOR in words:
        return (TORCH, DYNAMO)
    return (TORCH if torch or LAUNCHER in words else OTHERS,)


class Template:
    """One process's line to the template; the first to need it starts it."""

    def __init__(self, address: str | None = None) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        self.address = address or str(Path(tempfile.gettempdir(), f"zbench-tests-{run}"))
        self._line: socket.socket | None = None
        self.torch = False

    def fork(self, start: dict[str, Any], files: Sequence[int]) -> tuple[int, socket.socket]:
        """Have a process forked; return its number and where its exit status will be told."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._connected(), [pickle.dumps(start)], [theirs.fileno(), *files])
        told = ours.recv(MOST_BYTES)
        assert told, "the template of test processes has ended"
        return pickle.loads(told), ours

    def _connected(self) -> socket.socket:
        if self._line is None:
            with Path(f"{self.address}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._line = self._reached() or self._started()
        return self._line

    def _reached(self) -> socket.socket | None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.connect(self.address)
        except OSError:
            line.close()
            return None
        return line

    def _started(self) -> socket.socket:
        from zbench.launch import preload
        from zbench.launch.interpreter import server_environment

        Path(self.address).unlink(missing_ok=True)
        environment = server_environment(None, preload.environment(dict(os.environ), os.cpu_count() or 1))
        command = [sys.executable, "-P", str(PROGRAM), self.address]
        process = USUAL(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        give_up = time.monotonic() + START_SECONDS
        while (line := self._reached()) is None:
            assert process.poll() is None, "the template of test processes did not start"
            assert time.monotonic() < give_up, "the template of test processes takes too long to start"
            time.sleep(0.05)
        return line

    @contextlib.contextmanager
    def starts(self, *, torch: bool = False) -> Iterator[None]:
        """Have Python processes that are started in this block forked. torch: they need it, and have it."""
        before = subprocess.Popen
        fork_from(self.address, self)
        self.torch = torch
        try:
            yield
        finally:
            self.torch = False
            subprocess.Popen = before  # type: ignore[misc]

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen` that has `python -m MODULE` and `python SCRIPT` forked."""

    template: ClassVar[Template]
    _teller: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        preexec, _, passed, directory, env, _, _, shell, *pipes = rest[:14]
        words = [] if isinstance(args, str) or shell else [os.fspath(word) for word in args]
        bare = [word for word in words[1:] if word not in ("-P", "-u")]
        forkable = words[:1] == [sys.executable] and bool(bare) and (bare[0] == "-m" or bare[0][0] != "-")
        if not forkable or preexec is not None:
            super()._execute_child(args, executable, *rest)
            return
        usual = [own if file == -1 else file for own, file in enumerate((pipes[0], pipes[3], pipes[5]))]
        start = {
            "loaded": loads(words, torch=self.template.torch),
            "words": words[1:],
            "variables": dict(os.environ if env is None else env),
            "directory": os.fspath(directory or os.getcwd()),
            "numbers": (0, 1, 2, *passed),
            "address": None if set(STARTS_ITSELF) & set(words) else self.template.address,
        }
        self.pid, self._teller = self.template.fork(start, [*usual, *passed])
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *args: Any, **more: Any) -> int | None:
        if self._teller is None:
            return super()._internal_poll(*args, **more)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._teller is None:
            return super()._wait(timeout)
        if self.returncode is None:
            if not select.select([self._teller], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            told = self._teller.recv(MOST_BYTES)
            self.returncode = pickle.loads(told) if told else -signal.SIGKILL
            self._teller.close()
        return self.returncode


def fork_from(address: str, template: Template | None = None) -> None:
    """Have the Python processes that this one starts forked, by the template at `address`."""
    ForkedPopen.template = template or Template(address)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
