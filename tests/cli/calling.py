"""The command line, called in this process, with fake workers if a test asks for them."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launch.conftest import FAKES
from tests.shared_processes import SharedProcesses
from zbench.cli.main import main
from zbench.launch import disturbance, executor

FAKES_AT = Path(__file__).parents[1] / "launch"


class Output(NamedTuple):
    """A command's exit status, and what it printed."""

    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Output:
    """Run a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return Output(int(ended.value.code or 0), *capsys.readouterr())


def use_fake_workers(patch: pytest.MonkeyPatch, processes: SharedProcesses) -> None:
    """Have commands run fake workers in shared processes, whatever else the machine does."""
    processes.lend_by(patch)
    patch.setattr(executor, "DEFAULT_TARGETS", FAKES)
    patch.setattr(disturbance, "OTHER_LOAD", math.inf)  # other tests': no repeat is run again for it
    patch.setattr(disturbance, "STOLEN", math.inf)
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(FAKES_AT), os.environ.get("PYTHONPATH")])))
