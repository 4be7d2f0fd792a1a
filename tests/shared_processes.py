"""Processes that tests share: to start a trial server or a simulator takes longer than most tests."""

import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zbench.estimate import client
from zbench.estimate.result import SimulationOutcome
from zbench.launch.process import processes
from zbench.launch.process.client import RankGroup, WarmServer
from zbench.scratch import scratch_folder
from zbench.spec.trial import TrialSpec

OF_A_TEST = ("PYTEST_CURRENT_TEST", "XDG_CACHE_HOME", "ZBENCH_OUTPUT_DIR")
"""Variables that differ between tests, and that no worker reads."""

Key = tuple[tuple[str, ...], Path | None, tuple[tuple[str, str], ...]]


class SharedServer(WarmServer):
    """A trial server whose `close` keeps it for the next launcher, if it is alive and its groups are gone."""

    keep: Callable[["SharedServer"], None]
    _group: RankGroup | None = None
    _is_idle = True

    def __init__(self, modules: tuple[str, ...], python: Path | None) -> None:
        self._folder = scratch_folder()  # that of a launcher goes with the launcher
        super().__init__(modules, self._folder, python)

    def close(self) -> None:
        is_idle = self._is_idle and (self._group is None or self._group.is_gone)
        if self.ready is not None and is_idle and self._process.poll() is None:
            self.keep(self)
        else:
            self.end()

    def start_group(self, group: RankGroup, *arguments: Any) -> None:
        self._is_idle = False  # a server that cannot start a group is not lent again
        super().start_group(group, *arguments)
        self._group, self._is_idle = group, True

    def end(self) -> None:
        """End it, and remove its temporary files."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


class SharedSimulator(client.SimulatorProcess):
    """A simulating process that answers one question at a time, and whose `close` leaves it running."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def ask(self, trial: TrialSpec, base_dir: Path) -> SimulationOutcome:
        with self._lock:
            return super().ask(trial, base_dir)

    def close(self) -> None:
        pass

    def end(self) -> None:
        """End it."""
        super().close()


class SharedProcesses:
    """Trial servers that wait for a launcher, one for each set of modules and variables, and a simulator."""

    def __init__(self) -> None:
        self._servers: dict[Key, SharedServer] = {}
        self._simulator: SharedSimulator | None = None

    def lend_by(self, patch: pytest.MonkeyPatch) -> None:
        """Have launchers and estimates of this process get these, as long as the patch lasts."""
        patch.setattr(processes, "WarmServer", self._lent_server)
        patch.setattr(client, "SimulatorProcess", self._lent_simulator)

    def _lent_server(
        self, modules: tuple[str, ...], scratch: Path, python: Path | None = None
    ) -> SharedServer:
        variables = ((name, value) for name, value in sorted(os.environ.items()) if name not in OF_A_TEST)
        key = (modules, python, tuple(variables))
        server = self._servers.pop(key, None)
        if server is None or server._process.poll() is not None:
            if server is not None:
                server.end()
            server = SharedServer(modules, python)
            server.keep = partial(self._keep, key)
        return server

    def _keep(self, key: Key, server: SharedServer) -> None:
        if self._servers.setdefault(key, server) is not server:
            server.end()

    def _lent_simulator(self) -> SharedSimulator:
        if self._simulator is None or not self._simulator.alive:
            self._simulator = SharedSimulator()
        return self._simulator

    def close(self) -> None:
        """End all."""
        for server in self._servers.values():
            server.end()
        if self._simulator is not None:
            self._simulator.end()
