"""The process that tests' Python processes are forked from, `python -P template.py ADDRESS`; see `forking`.

It serves all test processes of a run and ends some seconds after the last. What it forks has imported what it
needs, and runs a module or a script as `python` would, in a session of its own, with the variables, the
directory and the files that `subprocess.Popen` would have given it. What it starts is forked, too,
unless the request names no address.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import pickle
import random
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 20
"""Of one request: the variables of a process, and some words."""
LAST_WAIT = 10.0
HIGH = 500
"""File numbers from here on are none that a process asks for."""

Start = dict[str, Any]
"""A process to fork, as `forking.ForkedPopen` describes it."""
FORKING = Path(__file__).with_name("forking.py")


class ForkServer:
    """Forks processes that have imported groups of modules, and fork servers that import one group more."""

    def __init__(self, loaded: tuple[tuple[str, ...], ...]) -> None:
        """loaded: the groups; of these, only the last is not imported yet."""
        for module in loaded[-1] if loaded else ():
            with contextlib.suppress(ImportError):  # who needs it will say so
                importlib.import_module(module)
        gc.collect()
        gc.freeze()  # collections in what is forked skip, and do not copy, what is here
        self._loaded = loaded
        self._running: dict[int, tuple[int, socket.socket]] = {}
        self._others: dict[tuple[tuple[str, ...], ...], socket.socket] = {}
        self._clients: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def listen(self, address: str) -> None:
        """Obey other processes until the last has gone, and none has come within `LAST_WAIT`."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        while sources := self._wait([self._listener, *self._clients], None if self._clients else LAST_WAIT):
            for source in sources:
                if source is self._listener:
                    self._clients.append(self._listener.accept()[0])
                elif not self._obey(source):
                    self._clients.remove(source)
                    source.close()
        os.unlink(address)
        os.unlink(f"{address}.lock")

    def _wait(self, sources: list[socket.socket], patience: float | None = None) -> list[socket.socket]:
        """Return the sources that have something to say; tell of processes that have ended meanwhile."""
        while True:
            ready, _, _ = select.select([*sources, *self._running], [], [], patience)
            for ended in [source for source in ready if isinstance(source, int)]:
                pid, teller = self._running.pop(ended)
                with contextlib.suppress(OSError):
                    teller.send(pickle.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
                os.close(ended)
                teller.close()
            heard = [source for source in ready if not isinstance(source, int)]
            if heard or not ready:
                return heard

    def _obey(self, source: socket.socket) -> bool:
        """Serve one request; False at the end of the source."""
        try:
            message, files, _, _ = socket.recv_fds(source, MOST_BYTES, 16)
        except ConnectionResetError:
            return False
        if not message:
            return False
        start = pickle.loads(message)
        if start["loaded"] == self._loaded:
            self._fork(start, files)
        else:
            further = start["loaded"][: len(self._loaded) + 1]
            socket.send_fds(self._server_of(further, files), [message], files)
        for file in files:
            os.close(file)
        return True

    def _server_of(self, loaded: tuple[tuple[str, ...], ...], files: list[int]) -> socket.socket:
        """Return where the fork server of one group more takes its requests. files: are none of its own."""
        if loaded not in self._others:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                ours.close()
                self._forget()
                for file in files:
                    os.close(file)
                other = ForkServer(loaded)
                while all(other._obey(source) for source in other._wait([theirs])):
                    pass
                os._exit(0)
            theirs.close()
            self._others[loaded] = ours
        return self._others[loaded]

    def _fork(self, start: Start, files: list[int]) -> None:
        teller, *given = files
        pid = os.fork()
        if pid == 0:
            self._forget()
            os.close(teller)
            become(start, given)
        told = socket.socket(fileno=os.dup(teller))
        with contextlib.suppress(OSError):  # who asked for it may have been killed
            told.send(pickle.dumps(pid))
        self._running[os.pidfd_open(pid)] = (pid, told)

    def _forget(self) -> None:
        """Close what is the fork server's own, in a process forked from it."""
        tellers = [teller for _, teller in self._running.values()]
        for own in (*self._clients, *self._others.values(), *tellers, *filter(None, [self._listener])):
            own.close()
        for process in self._running:
            os.close(process)
        self._clients, self._others, self._running, self._listener = [], {}, {}, None


def become(start: Start, files: list[int]) -> NoReturn:
    """Be the process that was asked for, and end."""
    code: object = 1
    try:
        _furnish(start, files)
        _run(list(start["words"]))
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # as `python` does before it ends
        importlib.import_module("atexit")._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(int(code or 0))


def _furnish(start: Start, files: list[int]) -> None:
    """Take the files, the directory and the variables of the process to be."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, start["numbers"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(start["directory"])
    os.environ.clear()
    os.environ.update(start["variables"])
    leads = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, leads), *(place for place in sys.path if place not in before)]
    importlib.invalidate_caches()
    random.seed()
    if start["address"] is not None:
        runpy.run_path(str(FORKING))["fork_from"](start["address"])


def _run(words: list[str]) -> None:
    """Run `python WORDS`."""
    safe = "-P" in words[: words.index("-m")] if "-m" in words else False
    while words[0] in ("-P", "-u"):
        words.pop(0)
    if words[0] == "-m":
        sys.path[:0] = [] if safe else [os.getcwd()]
        sys.argv = words[1:]
        if not hasattr(sys.modules.get(words[1]), "__path__"):
            sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [os.path.dirname(os.path.abspath(words[0]))]
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test processes' to handle
    ForkServer(()).listen(sys.argv[1])
