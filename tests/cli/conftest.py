"""The command line, called in this process, with fake workers if a test asks for them."""

import json
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.analysis.synthetic import saved, trial
from tests.launch.conftest import FAKES
from tests.shared_processes import SharedProcesses
from zbench.cli.main import main
from zbench.launch import executor
from zbench.record import lines, record
from zbench.record.store import find_runs

FAKES_AT = Path(__file__).parents[1] / "launch"


STAND_IN = """#!{python} -IS
import random
seconds = 0.125 * {factor} * random.uniform(0.99, 1.01)
print({document!r}.replace("0.125", str(seconds)).replace("8000.0", str(1000 / seconds)))
"""


class Output(NamedTuple):
    """A command's exit status, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What `--json` printed: one document, which holds the exit status."""
        document = json.loads(self.out)
        assert document["exit_code"] == self.code, self.err
        return document


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Output:
    """Run a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return Output(int(ended.value.code or 0), *capsys.readouterr())


def only_run() -> Path:
    """Return the directory of the one run in the working directory."""
    (run,) = find_runs(Path("results"))
    return run


def use_fake_workers(patch: pytest.MonkeyPatch, processes: SharedProcesses) -> None:
    """Have commands run fake workers in shared processes, whatever else the machine does."""
    processes.lend_by(patch)
    patch.setattr(executor, "DEFAULT_TARGETS", FAKES)
    patch.setattr(record, "OTHER_LOAD", math.inf)  # other tests': no repeat is run again for it
    patch.setattr(record, "STOLEN", math.inf)
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(FAKES_AT), os.environ.get("PYTHONPATH")])))


def stand_in(path: Path, factor: float = 1.0, verdict: str = "identical", peak: int = 10**6) -> Path:
    """Write an executable that answers every command with one record, `factor` times as slow."""
    document = {
        "schema_version": 1,
        "trials": [lines.jsonable(saved(item)) for item in trial([0.125], peak=peak)],
    }
    text = json.dumps(document).replace('"identical"', f'"{verdict}"')
    path.write_text(STAND_IN.format(python=sys.executable, document=text, factor=factor))
    path.chmod(0o755)
    return path


@pytest.fixture
def zbench(monkeypatch, capsys, tmp_path, shared_processes) -> Callable[..., Output]:
    """Return a function that runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    use_fake_workers(monkeypatch, shared_processes)
    monkeypatch.syspath_prepend(str(FAKES_AT))  # their model is looked for before a run
    for name in [name for name in os.environ if name.startswith("ZBENCH_")]:
        monkeypatch.delenv(name)
    return partial(run, capsys)


@pytest.fixture
def refusal(zbench) -> Callable[..., str]:
    """Return a function that runs a command which is to be refused, and returns its one message."""

    def refused(*words: object) -> str:
        code, _, message = zbench(*words)
        assert (code, message.count("error:"), "Traceback" in message) == (2, 1, False), message
        return message

    return refused


@pytest.fixture
def sweep_file(tmp_path) -> Path:
    """Return a sweep of two configurations, two repeats each; `workload.options` says what workers do."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: tried\n"
        "workload: {model: 'fake_worker:model'}\n"
        "run: {world_size: 2, repeats: 2, timeout: 120s}\n"
        "axes: {zero_stage: [0, 1]}\n"
    )
    return file
