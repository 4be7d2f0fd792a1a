"""The process that tests' trial servers are forked from: it loads what they load once for all test processes.

Run as a script: `python -P template.py ADDRESS MODULE...`. It serves until the last test process has gone.
What it forks is a trial server like any other, in a session of its own, with the variables, the directory
and the files that `subprocess.Popen` would have given it.
"""

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import sys
from typing import Any, NoReturn

MOST_BYTES = 1 << 20
"""Of one request: the variables of a test process, and some words."""

LAST_WAIT = 10.0
"""Seconds: the next test process may be about to come."""

Request = tuple[tuple[str, ...], str, tuple[str, ...], dict[str, str], str]
"""Modules the template has loaded, scratch directory, modules of the server, variables, directory."""


class Template:
    """Forks servers that have imported `modules`; those of other modules come from templates forked of it."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        from zbench.launch import preload

        preload.load(modules)
        gc.collect()
        gc.freeze()  # collections in what is forked skip, and do not copy, what is here
        self._modules = modules
        self._running: dict[int, tuple[int, socket.socket]] = {}
        self._others: dict[tuple[str, ...], socket.socket] = {}
        self._clients: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def listen(self, address: str) -> None:
        """Obey test processes until the last has gone, and none has come within `LAST_WAIT`."""
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
        """Return the sources that have something to say; tell of servers that have ended meanwhile."""
        ready, _, _ = select.select([*sources, *self._running], [], [], patience)
        for ended in [source for source in ready if isinstance(source, int)]:
            pid, teller = self._running.pop(ended)
            with contextlib.suppress(OSError):
                teller.send(pickle.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            os.close(ended)
            teller.close()
        heard = [source for source in ready if not isinstance(source, int)]
        return heard if heard or not ready else self._wait(sources, patience)

    def _obey(self, source: socket.socket) -> bool:
        """Serve one request; False at the end of the source."""
        message, files, _, _ = socket.recv_fds(source, MOST_BYTES, 3)
        if not message:
            return False
        modules = pickle.loads(message)[0]
        if modules == self._modules:
            self._fork(message, files)
        else:
            socket.send_fds(self._template_of(modules), [message], files)
        for file in files:
            os.close(file)
        return True

    def _template_of(self, modules: tuple[str, ...]) -> socket.socket:
        """Return where a template of other modules takes its requests."""
        if modules not in self._others:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                ours.close()
                self._forget()
                other = Template(modules)
                while other._obey_next(theirs):
                    pass
                os._exit(0)
            theirs.close()
            self._others[modules] = ours
        return self._others[modules]

    def _obey_next(self, source: socket.socket) -> bool:
        return all(self._obey(ready) for ready in self._wait([source]))

    def _fork(self, message: bytes, files: list[int]) -> None:
        _, scratch, modules, variables, directory = pickle.loads(message)
        launcher, errors, teller = files
        pid = os.fork()
        if pid == 0:
            self._forget()
            os.close(teller)
            become_server(launcher, errors, variables, directory, [scratch, *modules])
        told = socket.socket(fileno=os.dup(teller))
        told.send(pickle.dumps(pid))
        self._running[os.pidfd_open(pid)] = (pid, told)

    def _forget(self) -> None:
        """Close what is the template's own, in a process forked from it."""
        tellers = [teller for _, teller in self._running.values()]
        for own in (*self._clients, *self._others.values(), *tellers, *filter(None, [self._listener])):
            own.close()
        for process in self._running:
            os.close(process)
        self._clients, self._others, self._running, self._listener = [], {}, {}, None


def become_server(
    launcher: int, errors: int, variables: dict[str, str], directory: str, arguments: list[str]
) -> NoReturn:
    """Be `python -P -m zbench.launch.server` with these arguments."""
    code = 1
    try:
        before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.setsid()
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(variables)
        leads = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [*filter(None, leads), *(place for place in sys.path if place not in before)]
        for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, errors), (2, errors)):
            os.dup2(file, number)
        os.close(errors)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from zbench.launch import server

        server.main([str(launcher), *arguments])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(code)


def main(arguments: list[str]) -> Any:
    """Load the modules and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test processes' to handle
    Template(tuple(arguments[1:])).listen(arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
