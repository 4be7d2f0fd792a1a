"""A server that does not start, and what is told before the first trial."""

import os
from pathlib import Path

import pytest

from tests.launch.conftest import FAKES, make_trial
from zbench.errors import ExitCode, TrialsFailedError, ZbenchError
from zbench.gpus import Gpu, all_gpus
from zbench.launch.process import client, local, processes
from zbench.launch.process.client import WarmServer
from zbench.launch.process.processes import Launcher
from zbench.launch.trial import TrialRunner
from zbench.spec.run import SLOW_UPDATE


def test_a_server_that_starts_too_slowly_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine without a free core: "the trial server was killed twice while it started"."""
    (tmp_path / "endless.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(client, "_START_SECONDS", 1.0)
    server = WarmServer(("endless",), tmp_path)
    with pytest.raises(
        ZbenchError, match=r"did not start within 1 s: other work keeps this machine"
    ) as ended:
        server.wait_until_ready()
    assert ended.value.exit_code == ExitCode.TRIALS_FAILED
    assert "install zbench on a local disk" in str(ended.value)
    assert server._process.returncode is not None, "nothing is left"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed twice while it started"),
        ("import os; print('no luck', flush=True); os._exit(3)", "did not start: no luck"),
    ],
    ids=["killed", "failed"],
)
def test_a_server_that_does_not_start_says_why(
    code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Launcher(("ending",)) as launcher, pytest.raises(ZbenchError, match=says):
        launcher.wait_until_ready()


@pytest.mark.parametrize(("kills", "says"), [(0, "by a signal from outside"), (2, "by the kernel: the ")])
def test_a_server_that_is_killed_twice_ends_the_command_with_the_cause_and_the_remedy(
    kills: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    counts = iter([7, 7 + kills])
    monkeypatch.setattr(processes, "kernel_oom_kills", lambda: next(counts))
    with Launcher(("ending",)) as launcher, pytest.raises(TrialsFailedError, match=says) as ended:
        launcher.wait_until_ready()
    assert ended.value.exit_code == ExitCode.TRIALS_FAILED
    assert "raise the limit of the container" in str(ended.value)


def test_a_module_that_a_server_cannot_import_is_told_once() -> None:
    told: list[str] = []
    with Launcher(("no_such_module",), tell=told.append) as launcher:
        for _ in range(2):
            (problem,) = launcher.wait_until_ready().problems
    assert told == [f"cannot import {problem}"]


@pytest.mark.check
@pytest.mark.skipif(bool(all_gpus()), reason="the kernels can be used here")
def test_before_the_first_trial_it_is_told_that_updates_are_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of its own finds that this machine's torch has no CUDA; the trials run on the CPU."""
    monkeypatch.setattr(local, "visible_gpus", lambda: [Gpu("a GPU")])
    monkeypatch.setattr(local, "uses_cpu", lambda device: False)
    told: list[str] = []
    executor = local.LocalExecutor(tmp_path, tmp_path, targets=FAKES, tell=told.append)
    with TrialRunner(executor, tmp_path) as runner:
        for _ in range(2):
            record = runner.run(make_trial())
            assert record.outcome == "ok", record.error
            assert [text.startswith(SLOW_UPDATE) for text in told] == [True]
