"""A private PostgreSQL server in a temporary directory, for tests; never the machine's own one."""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
BINARIES = next((place for place in _PLACES if (place / "initdb").exists()), None)
PASSWORD = "se/cret@" + secrets.token_hex(4)
"""Needs percent-encoding in a URL, so that both spellings are looked for in the output."""


class Server:
    """A server on a Unix socket in `home`, with a password that is asked for; it can be started again."""

    def __init__(self, home: Path) -> None:
        """Make its files and start it."""
        assert BINARIES is not None
        self._home = home
        self._data = home / "data"
        self._binaries = BINARIES
        quoted = PASSWORD.replace("/", "%2F").replace("@", "%40")
        self.url = f"postgresql://zbench:{quoted}@/postgres?host={home}"
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(home, "postgres", "postgres")
            self._as_user = ["runuser", "-u", "postgres", "--"]
        (home / "password").write_text(PASSWORD)
        (home / "password").chmod(0o644)
        initdb = [self._binaries / "initdb", "-D", self._data, "-U", "zbench", "--auth=scram-sha-256"]
        self._run(*initdb, f"--pwfile={home / 'password'}", "--no-sync", "-E", "UTF8")
        self.start()

    def start(self) -> None:
        """Start it; after a kill it recovers first."""
        options = f"-c listen_addresses= -k {self._home} -c fsync=off -c max_connections=120"
        self._control("-l", self._home / "log", "-o", options, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """End it, if it runs; by default without a farewell to its clients."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._control("-m", mode, "stop")

    def sessions(self) -> list[psutil.Process]:
        """Return the processes that serve clients."""
        children = psutil.Process(self.pid).children()
        return [child for child in children if "zbench" in " ".join(child.cmdline())]

    def kill(self) -> None:
        """Kill it and all its sessions at once, as a crash of its host does."""
        main = psutil.Process(self.pid)
        family = [main, *main.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # a zombie would pass for a running server

    @property
    def pid(self) -> int:
        """The process that all others of the server are children of."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def _control(self, *words: object) -> None:
        self._run(self._binaries / "pg_ctl", "-D", self._data, *words)

    def _run(self, *words: object) -> None:
        command = [*self._as_user, *map(str, words)]
        subprocess.run(command, check=True, capture_output=True, timeout=300, cwd="/")


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Run a server that can be killed and started again."""
    with contextlib.ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="zbench-pg-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        server = Server(home)
        stack.callback(server.stop)
        yield server
