"""The connection to one host of a trial: the agent there, what it says, and whether it is still there."""

import json
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from zbench.launch.host_agent import SILENCE_SECONDS

_AGENT = ("-P", "-u", "-m", "zbench.launch.host_agent")
_WORDS_OF_AN_ERROR = 300


def split_name(entry: str) -> tuple[str, str]:
    """Return name and address of a host as `run.hosts` gives it: `name` or `name=address`."""
    name, _, address = entry.partition("=")
    return name.strip(), address.strip() or name.strip()


def command_on(host: str, template: str) -> list[str]:
    """Return the command line that starts an agent on a host.

    template: `run.host_command`. `{command}` is replaced by the command as one text for a shell, as ssh wants
    it; where it is missing the words of the command follow.
    """
    agent = [sys.executable, *_AGENT]
    words = [word.replace("{host}", host) for word in shlex.split(template)]
    if "{command}" in template:
        return [word.replace("{command}", shlex.join(agent)) for word in words]
    return [*words, *agent]


class HostLink:
    """The agent of one host, from its start to its end. `errors`: the file that takes its standard error."""

    def __init__(self, name: str, template: str, errors: Path) -> None:
        self.name = name
        self.port: int | None = None
        self.code: int | None = None
        self._errors = errors
        self._heard = time.monotonic()
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                command_on(name, template),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, order: dict[str, Any] | None = None) -> None:
        """Send an order, or a sign of life. What a lost host does not take shows in `lost`."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write((json.dumps(order) if order is not None else "") + "\n")
            self._process.stdin.flush()

    @property
    def lost(self) -> str | None:
        """Return why the host counts as lost, None while it is there or has ended well or badly."""
        if self.code is not None:
            return None
        status = self._process.poll()
        if status is not None:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            return f"the connection to it ended {how}{self._last_words()}"
        silent = time.monotonic() - self._heard
        return f"nothing came from it for {silent:.0f} s" if silent > SILENCE_SECONDS else None

    def close(self) -> None:
        """End the connection, and return when it has ended; the agent then kills what it started."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard = time.monotonic()
            if line.strip():
                self._take(line)

    def _take(self, line: str) -> None:
        """Take a message over; other output, such as a login banner, is none."""
        try:
            said = json.loads(line)
        except ValueError:
            return
        if isinstance(said, dict):
            self.port = said.get("port", self.port)
            self.code = said.get("code", self.code)

    def _last_words(self) -> str:
        """Return the end of what was said on standard error, with a colon before it."""
        text = " ".join(self._errors.read_text(errors="replace").split())[-_WORDS_OF_AN_ERROR:]
        return f": {text}" if text else ""
