"""A private PostgreSQL server in a temporary directory, for tests; never the machine's own one."""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
BINARIES = next((place for place in _PLACES if (place / "initdb").exists()), None)
PASSWORD = "se/cret@" + secrets.token_hex(4)
"""Needs percent-encoding in a URL, so that both spellings are looked for in what is printed."""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run a server on a Unix socket; yield the URL of its database, with a password that is asked for."""
    assert BINARIES is not None
    home = Path(tempfile.mkdtemp(prefix="zbench-pg-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(home, "postgres", "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    (home / "password").write_text(PASSWORD)
    (home / "password").chmod(0o644)
    data, log = home / "data", home / "log"

    def run(*words: object) -> None:
        subprocess.run([*as_user, *map(str, words)], check=True, capture_output=True, timeout=60, cwd="/")

    try:
        initdb = [BINARIES / "initdb", "-D", data, "-U", "zbench", "--auth=scram-sha-256"]
        run(*initdb, f"--pwfile={home / 'password'}", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses= -k {home} -c fsync=off -c max_connections=50"
        run(BINARIES / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start")
        quoted = PASSWORD.replace("/", "%2F").replace("@", "%40")
        yield f"postgresql://zbench:{quoted}@/postgres?host={home}"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            run(BINARIES / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(home, ignore_errors=True)
