"""Whoever ends a sweep keeps what is finished and is told how to go on; `test_faults` kills its processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.record.store import find_runs

from .processes import until
from .rounds import DRIVER, Command, Round, records


class KillableSweep(Round):
    """A sweep of 12 quick repeats of fake workers, to be ended and resumed."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, points=6, repeats=2, seconds=0.01, timeout="120s")
        self.results = home / "results"

    def begin(self) -> Command:
        """Start the sweep, or continue it if a run directory is there."""
        again = ["--resume", "last"] if find_runs(self.results) else []
        return self.start("sweep", self.file, *again, "-o", self.results)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.check)])
def test_terminated_launcher_concludes_as_after_ctrl_c(tmp_path: Path, number: signal.Signals) -> None:
    sweep = KillableSweep(tmp_path)
    launcher = sweep.begin()
    until(lambda: bool(records(sweep.results)), "a repeat ends")
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=600)
    assert launcher.returncode == 130, err
    document = json.loads(out)
    assert document["exit_code"] == 130
    assert len(document["trials"]) == len(records(sweep.results))
    assert f"ended by {number.name}; " in err
    assert f"--resume {find_runs(sweep.results)[0]}" in err
    assert sweep.left() == []


def test_ctrl_c_on_a_terminal_keeps_what_is_finished_and_says_how_to_go_on(tmp_path: Path) -> None:
    """The terminal sends Ctrl-C to every process in its foreground group; ranks are not among them."""
    sweep = KillableSweep(tmp_path)
    on_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = [sys.executable, str(DRIVER), "sweep", str(sweep.file), "-o", str(sweep.results)]
    terminal = subprocess.Popen(
        [sys.executable, "-c", on_terminal, *command],
        env=os.environ | sweep.environment | {"TERM": "xterm", "COLUMNS": "200"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert terminal.stdin is not None
    until(lambda: len(records(sweep.results)) >= 2, "two repeats end")
    terminal.stdin.write("\x03")
    terminal.stdin.flush()
    until(lambda: terminal.poll() is not None, "the sweep ends")
    shown = terminal.stdout.read() if terminal.stdout else ""
    assert terminal.returncode == 130
    assert " kept, continue with" in shown
    assert f"--resume {find_runs(sweep.results)[0]}" in shown
    assert sweep.left() == []
    rows = records(sweep.results)
    assert sweep.wait(sweep.begin()) == []
    assert records(sweep.results)[: len(rows)] == rows
    assert {row[2:] for row in records(sweep.results)} == {("ok", "identical")}
