"""Simulating processes forked from the session's nursery: torch is there, and each costs what it computes.

A started one imports torch for two seconds; that the command starts, and what it answers, tests of
`zbench.estimate.client` see without this.
"""

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.engine.ranks import NURSERY
from zbench.estimate import client


class ForkedProcess:
    """Stands in for the `subprocess.Popen` of a simulating process."""

    def __init__(self, command: list[str], *, env: dict[str, str], **_: Any) -> None:
        assert command[1:] == ["-m", "zbench.estimate"]
        ((self.pid, pipe),) = NURSERY[0].fork(1, simulate)
        pipe.send((os.getcwd(), env))
        self.stdin, self.stdout = (os.fdopen(os.dup(pipe.fileno()), mode) for mode in ("w", "r"))
        pipe.close()

    def kill(self) -> None:
        """End the process."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Return when the process has ended: -9, for only who forked it is told how it did."""
        while psutil.pid_exists(self.pid):
            time.sleep(0.001)
        return -signal.SIGKILL


def simulate(pipe: Connection, *_: object) -> None:
    """Be a simulating process: the program itself, with the pipe as its stdin and stdout."""
    import torch

    from zbench.estimate.__main__ import main

    folder, environment = pipe.recv()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, file in enumerate((pipe.fileno(), pipe.fileno(), nowhere)):
        os.dup2(file, number)
    pipe.close()
    sys.stdin = os.fdopen(0)
    main()


def fork_simulators(patch: pytest.MonkeyPatch) -> None:
    """Have every `Simulator` of this process fork its processes, as long as the patch lasts."""
    patch.setattr(client, "subprocess", SimpleNamespace(Popen=ForkedProcess, PIPE=None, DEVNULL=None))
