"""Trial servers that stay for the tests to come: to start one takes longer than most tests' trials."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.launch.forking import Template
from zbench.launch import local
from zbench.launch.client import WarmServer
from zbench.launch.messages import Exited, GroupGone, RankStart, Ready

OF_A_TEST = ("PYTEST_CURRENT_TEST", "XDG_CACHE_HOME")
"""Variables that differ between tests, and that no worker reads."""

Key = tuple[tuple[str, ...], Path | None, tuple[tuple[str, str], ...]]


class LentServer:
    """Stands in for a `WarmServer`; `close` gives a server that is ready, idle and alive back."""

    def __init__(self, server: WarmServer, give_back: Callable[[WarmServer], None]) -> None:
        self._server, self._give_back = server, give_back
        self._idle = True

    @property
    def pid(self) -> int:
        return self._server.pid

    def wait_until_ready(self) -> Ready:
        return self._server.wait_until_ready()

    def start_group(self, target: str, ranks: list[RankStart]) -> tuple[int, ...]:
        self._idle = False
        return self._server.start_group(target, ranks)

    def next_event(self, timeout: float) -> Exited | GroupGone | None:
        event = self._server.next_event(timeout)
        self._idle = self._idle or isinstance(event, GroupGone)
        return event

    def dump_stacks(self) -> None:
        self._server.dump_stacks()

    def end_group(self, on_event: Callable[[Exited | GroupGone], None]) -> None:
        self._server.end_group(on_event)
        self._idle = True

    def close(self) -> None:
        if self._idle and self._server.ready is not None and psutil.pid_exists(self._server.pid):
            self._give_back(self._server)
        else:
            self._server.close()
        self._idle = False


class Servers:
    """Servers that wait for a launcher: one for each set of modules and variables."""

    def __init__(self, template: Template) -> None:
        """template: what new ones are forked from."""
        self._kept: dict[Key, WarmServer] = {}
        self._template = template

    def lend(self, modules: tuple[str, ...], scratch: Path, python: Path | None = None) -> LentServer:
        """Stand in for `WarmServer`: return one that waits, else a new one."""
        variables = ((name, value) for name, value in sorted(os.environ.items()) if name not in OF_A_TEST)
        key = (modules, python, tuple(variables))
        server = self._kept.pop(key, None)
        if server is None or not psutil.pid_exists(server.pid):
            with self._template.starts():
                server = WarmServer(modules, scratch, python)
        return LentServer(server, partial(self._keep, key))

    def _keep(self, key: Key, server: WarmServer) -> None:
        if key in self._kept:
            server.close()
        else:
            self._kept[key] = server

    def lend_by(self, patch: pytest.MonkeyPatch) -> None:
        """Have launchers of this process get these servers, as long as the patch lasts."""
        patch.setattr(local, "WarmServer", self.lend)

    def close(self) -> None:
        """End all that wait."""
        for server in self._kept.values():
            server.close()
