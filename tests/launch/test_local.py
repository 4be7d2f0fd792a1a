"""A server that does not start, and what is told before the first trial."""

import os
from pathlib import Path
from typing import ClassVar

import pytest

from tests.launch.conftest import FAKES, make_trial
from zbench.errors import ZbenchError
from zbench.gpus import Gpu, all_gpus
from zbench.job.messages import Ready
from zbench.launch.process import client, local, processes
from zbench.launch.process.client import ServerLostError, WarmServer
from zbench.launch.process.processes import Launcher
from zbench.launch.trial import TrialRunner
from zbench.spec.engine import EngineSpec
from zbench.spec.run import SLOW_UPDATE


def test_a_server_that_starts_too_slowly_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine without a free core: "the trial server was killed twice while it started"."""
    (tmp_path / "endless.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(client, "_START_SECONDS", 1.0)
    server = WarmServer(("endless",), tmp_path)
    with pytest.raises(ZbenchError, match=r"did not start within 1 s: other work keeps this machine busy"):
        server.wait_until_ready()
    assert server._process.returncode is not None, "nothing is left"


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("import os; os.kill(os.getpid(), 9)", ServerLostError, None),
        ("import os; print('no luck', flush=True); os._exit(3)", ZbenchError, "did not start: no luck"),
        ("import os; os._exit(0)", ZbenchError, "did not start: it ended with status 0"),
    ],
    ids=["killed", "failed", "ended"],
)
def test_a_server_that_was_killed_is_lost_and_one_that_ended_says_why(
    code: str, error: type[Exception], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(error, match=says):
        WarmServer(("ending",), tmp_path).wait_until_ready()


def test_a_server_that_is_closed_ends_by_itself_without_its_files(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    server = WarmServer((), scratch)
    server.wait_until_ready()
    server.close()
    assert not scratch.exists()


def test_a_server_that_was_lost_is_replaced_once(tmp_path: Path) -> None:
    with Launcher((), None) as launcher:
        lost = launcher.ready_server()
        launcher.replace_server(lost)
        other = launcher.ready_server()
        launcher.replace_server(lost)
        assert launcher.ready_server() is other is not lost
        assert other._process.poll() is None


@pytest.mark.skipif(bool(all_gpus()), reason="the kernels can be used here")
@pytest.mark.parametrize("engine", [{}, {"engine": "ddp"}])
def test_before_the_first_trial_it_is_told_that_updates_are_slower(
    engine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of its own finds that this machine's torch has no CUDA; the trials run on the CPU."""
    monkeypatch.setattr(local, "visible_gpus", lambda: [Gpu("a GPU")])
    monkeypatch.setattr(local, "uses_cpu", lambda device: False)
    told: list[str] = []
    executor = local.LocalExecutor(tmp_path, tmp_path, targets=FAKES, tell=told.append)
    with TrialRunner(executor, tmp_path) as runner:
        for _ in range(2):
            record = runner.run(make_trial().model_copy(update={"engine": EngineSpec(**engine)}))
            assert record.outcome == "ok", record.error
            assert [text.startswith(SLOW_UPDATE) for text in told] == ([] if engine else [True])


class FakeServer:
    """A trial server that says this when it is asked; `LOST` that it was killed."""

    says: ClassVar[list[str]]

    def __init__(self, *_: object) -> None:
        pass

    def wait_until_ready(self) -> Ready:
        if (problem := self.says.pop(0)) == "LOST":
            raise ServerLostError
        return Ready(0.1, (problem,), 1)

    def kill(self) -> str:
        return ""

    close = kill


@pytest.mark.parametrize("says", [["no x", "no x"], ["LOST", "no x", "LOST", "no x"]])
def test_what_a_server_cannot_import_is_told_once(monkeypatch: pytest.MonkeyPatch, says: list[str]) -> None:
    monkeypatch.setattr(processes, "WarmServer", FakeServer)
    FakeServer.says = says
    told: list[str] = []
    with Launcher(tell=told.append) as launcher:
        assert launcher.wait_until_ready().problems == ("no x",)
        assert isinstance(launcher.ready_server(), FakeServer)
    assert told == ["cannot import no x"]


def test_a_server_that_is_killed_twice_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WarmServer", FakeServer)
    FakeServer.says = ["LOST", "LOST"]
    with Launcher() as launcher, pytest.raises(ZbenchError, match="killed twice while it started"):
        launcher.wait_until_ready()
