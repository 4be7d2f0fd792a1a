"""One simulating process for all commands of a test file: to start one takes longer than most simulations."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.launch.forking import Template
from zbench.estimate import client
from zbench.estimate.result import SimulationOutcome
from zbench.spec.inputs import BUILT_IN_MODELS


class SharedProcess:
    """Stands in for `SimulatorProcess`: hands questions to one that stays, each distinct one once."""

    alive = True
    _lock = threading.Lock()

    def __init__(self, real: client.SimulatorProcess, answers: dict[str, SimulationOutcome]) -> None:
        self._real, self._answers = real, answers

    def ask(self, question: dict[str, Any]) -> SimulationOutcome:
        own = question["trial"]["workload"]["model"] not in BUILT_IN_MODELS  # then the folder matters
        key = json.dumps(question | {"base_dir": question["base_dir"] if own else ""}, sort_keys=True)
        with self._lock:
            if key not in self._answers:
                self._answers[key] = self._real.ask(question)
            return self._answers[key]

    def close(self) -> None:
        """Leave the process to the next command."""


def fork_simulators(patch: pytest.MonkeyPatch, template: Template) -> None:
    """Have every `Simulator` of this process get processes that need not import torch."""
    start = client.SimulatorProcess

    def forked() -> client.SimulatorProcess:
        with template.starts():
            return start()

    patch.setattr(client, "SimulatorProcess", forked)


@contextmanager
def one_simulator(template: Template) -> Iterator[None]:
    """Have every `Simulator` ask the same process."""
    with pytest.MonkeyPatch.context() as patch:
        fork_simulators(patch, template)
        real, answers = client.SimulatorProcess(), dict[str, SimulationOutcome]()
        patch.setattr(client, "SimulatorProcess", lambda: SharedProcess(real, answers))
        yield
        real.close()
