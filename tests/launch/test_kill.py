"""kill -9 of any process of a sweep at any moment: nothing is lost, nothing comes twice, nothing runs on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from zbench.record.store import find_runs

from .processes import marked, until
from .rounds import DRIVER, Command, Round, records

POINTS = 6
REPEATS = 2
Report = tuple[list[tuple[Any, ...]], str]


class KillableSweep(Round):
    """A sweep of 12 quick repeats of fake workers, to be killed and resumed."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, POINTS, REPEATS, seconds=0.01, timeout="120s")
        self.results = home / "results"

    def begin(self) -> Command:
        """Start the sweep, or continue it if a run directory is there."""
        again = ["--resume", "last"] if find_runs(self.results) else []
        return self.start("sweep", self.file, *again, "-o", self.results)

    def finish(self) -> Report:
        """Run to the end undisturbed; return what a report shows, without run id and order, and the best."""
        out, err = self.begin().communicate(timeout=600)
        document = json.loads(out)
        assert document["exit_code"] == 0, err
        shown = ("trial_id", "repeat", "outcome", "timing", "memory", "correctness")
        rows = [tuple(record[key] for key in shown) for record in document["trials"]]
        return sorted(rows, key=lambda row: row[:2]), document["recommended"]

    def nothing_runs(self) -> bool:
        """Whether no process that any start of this sweep began is alive."""
        return not marked(self.mark)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of a sweep that nobody killed."""
    return KillableSweep(tmp_path_factory.mktemp("undisturbed")).finish()


@pytest.mark.parametrize("finished", [0, 2, 5, 8])
def test_kills_at_random_moments_lose_nothing(tmp_path: Path, undisturbed: Report, finished: int) -> None:
    sweep, rng = KillableSweep(tmp_path), random.Random(finished)
    launcher = sweep.begin()
    until(lambda: len(records(sweep.results)) >= finished, "so many repeats end")
    time.sleep(rng.uniform(0, 0.1))
    victims = sorted(marked(sweep.mark), key=lambda process: process.pid)
    with suppress(psutil.NoSuchProcess):  # ranks end by themselves
        rng.choice(victims).kill()
    launcher.communicate(timeout=600)
    until(sweep.nothing_runs, "everything below the killed process ends")
    kept = records(sweep.results)
    assert sweep.finish() == undisturbed
    rows = records(sweep.results)
    assert rows[: len(kept)] == kept
    assert len(rows) == len({row[:2] for row in rows}) == POINTS * REPEATS
    until(sweep.nothing_runs, "everything ends with the sweep")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
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
    until(sweep.nothing_runs, "everything ends with the sweep")
    kept = records(sweep.results)
    rows, _ = sweep.finish()
    assert records(sweep.results)[: len(kept)] == kept
    assert {row[2] for row in rows} == {"ok"}
