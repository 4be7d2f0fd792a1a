"""The command line in this process, with fake workers."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli import calling
from zbench.launch import disturbance, executor

FAKES_AT = Path(__file__).parents[1] / "launch"


@dataclass
class Said:
    """What a command printed, and its exit status."""

    code: int
    out: str
    err: str


@pytest.fixture
def zbench(monkeypatch, capsys, tmp_path, shared_processes) -> Callable[..., Said]:
    """Return a function that runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    shared_processes.lend_by(monkeypatch)
    monkeypatch.setattr(disturbance, "OTHER_LOAD", math.inf)  # other tests': no repeat is run again for it
    monkeypatch.setattr(disturbance, "STOLEN", math.inf)
    fakes = executor.Targets("fake_worker:run_rank", "fake_worker:run_reference", ("fake_worker",))
    monkeypatch.setattr(executor, "DEFAULT_TARGETS", fakes)
    path = os.pathsep.join(filter(None, [str(FAKES_AT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(FAKES_AT))  # their model is looked for before a run
    for name in [name for name in os.environ if name.startswith("ZBENCH_")]:
        monkeypatch.delenv(name)

    def run(*arguments: Any) -> Said:
        return Said(*calling.run(capsys, *arguments))

    return run


@pytest.fixture
def sweep_file(tmp_path) -> Path:
    """Return a sweep of two configurations, two repeats each; `workload.options` says what workers do."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: tried\n"
        "workload: {model: 'fake:model'}\n"
        "run: {world_size: 2, repeats: 2, timeout: 20s}\n"
        "axes: {zero_stage: [0, 1]}\n"
    )
    return file
