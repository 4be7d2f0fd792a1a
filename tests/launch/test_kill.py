"""kill -9 of any process of a sweep at any moment: nothing is lost, nothing comes twice, nothing runs on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from zbench.record.store import find_runs

from .processes import inside, until

DRIVER = Path(__file__).with_name("driver.py")
POINTS = 6
REPEATS = 2
SHORT_MOMENTS = 4
SOAK_MOMENTS = int(os.environ.get("SOAK_KILLS", "100"))


class KillableSweep:
    """A sweep of 12 repeats of fake workers in a process of its own, to be killed and resumed."""

    def __init__(self, home: Path) -> None:
        """home: where all its processes work, and no other."""
        self.home = home
        self.results = home / "results"
        self.scratch = home / "tmp"
        self.scratch.mkdir()
        self.file = home / "sweep.json"
        axis = [10_000 + n for n in range(POINTS)]
        self.file.write_text(
            json.dumps(
                {
                    "name": "killed",
                    "workload": {"model": "fake:model", "options": {"sleep": 0.01}},
                    "run": {"world_size": 2, "repeats": REPEATS, "timeout": "20s"},
                    "axes": {"reduce_bucket_size": axis},
                }
            )
        )

    def start(self, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start the sweep, or continue it if a run directory is there."""
        again = ["--resume", "last"] if find_runs(self.results) else []
        return subprocess.Popen(
            [
                sys.executable,
                str(DRIVER),
                "sweep",
                str(self.file),
                *again,
                "-o",
                str(self.results),
                "--json",
            ],
            env=os.environ | {"TMPDIR": str(self.scratch)},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def nothing_runs(self) -> bool:
        """Whether no process that any start of this sweep began is alive."""
        return not inside(self.home)

    def finish(self) -> dict:
        """Run to the end undisturbed and return the document."""
        out, _ = self.start().communicate(timeout=60)
        return json.loads(out)

    def lines(self) -> list[tuple[str, int]]:
        """Return (trial, repeat) of every whole line in the file, as it is on disk."""
        (run,) = find_runs(self.results)
        whole = (run / "trials.jsonl").read_text().split("\n")[:-1]
        parsed = [json.loads(line) for line in whole]
        return [(record["trial_id"], record["repeat"]) for record in parsed]


def report(document: dict) -> list[tuple]:
    """Return what a report shows, apart from run id, order and warnings of load from outside."""
    rows = [
        (r["trial_id"], r["repeat"], r["outcome"], r["timing"], r["memory"], r["correctness"])
        for r in document["trials"]
    ]
    return sorted(rows, key=lambda row: row[:2])


def kill_one_of(
    sweep: KillableSweep, launcher: subprocess.Popen[str], rng: random.Random, within: float
) -> str:
    """Kill -9 a random process of the sweep after a random time; return which kind it was."""
    time.sleep(rng.uniform(0, within))
    victims = sorted(inside(sweep.home), key=lambda process: process.pid)
    if not victims:
        return "nobody"
    victim = rng.choice(victims)
    kind = "launcher" if victim.pid == launcher.pid else "below"
    try:
        victim.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return "nobody"
    return kind


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[list[tuple], str | None, float]:
    """Return the report of a sweep that nobody killed, its best, and how long it took."""
    sweep = KillableSweep(tmp_path_factory.mktemp("undisturbed"))
    began = time.monotonic()
    document = sweep.finish()
    assert document["exit_code"] == 0
    return report(document), document["recommended"], time.monotonic() - began


def survive(tmp_path: Path, moments: int, seed: int, undisturbed) -> set[str]:
    """Kill something in a new sweep at each moment, resume it, compare; return what kinds were killed."""
    expected, best, seconds = undisturbed
    rng = random.Random(seed)
    killed = set()
    for moment in range(moments):
        home = tmp_path / f"moment{moment}"
        home.mkdir()
        sweep = KillableSweep(home)
        launcher = sweep.start()
        killed.add(kill_one_of(sweep, launcher, rng, seconds))
        launcher.communicate(timeout=60)
        until(sweep.nothing_runs, "everything below the killed process ends")
        kept = sweep.lines() if find_runs(sweep.results) else []
        document = sweep.finish()
        assert document["exit_code"] == 0
        assert sweep.lines()[: len(kept)] == kept
        assert len(sweep.lines()) == len(set(sweep.lines())) == POINTS * REPEATS
        assert report(document) == expected
        assert document["recommended"] == best
        until(sweep.nothing_runs, "everything ends with the sweep")
    return killed


def test_kills_at_a_few_random_moments_lose_nothing(tmp_path, undisturbed):
    assert survive(tmp_path, SHORT_MOMENTS, seed=1, undisturbed=undisturbed) & {
        "launcher",
        "below",
    }


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kills_at_many_random_moments_lose_nothing(tmp_path, undisturbed):
    assert survive(tmp_path, SOAK_MOMENTS, seed=2, undisturbed=undisturbed) >= {
        "launcher",
        "below",
    }


def test_one_sweep_killed_again_and_again_is_finished_in_the_end(tmp_path, undisturbed):
    expected, best, seconds = undisturbed
    sweep = KillableSweep(tmp_path)
    rng = random.Random(3)
    for _ in range(2):
        launcher = sweep.start()
        time.sleep(seconds * rng.uniform(0.5, 0.8))
        launcher.kill()
        launcher.communicate(timeout=60)
        until(sweep.nothing_runs, "everything ends with its launcher")
    document = sweep.finish()
    assert report(document) == expected
    assert document["recommended"] == best
    assert len(sweep.lines()) == POINTS * REPEATS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_launcher_concludes_as_after_ctrl_c(tmp_path, number):
    sweep = KillableSweep(tmp_path)
    launcher = sweep.start(stderr=subprocess.PIPE)
    until(lambda: bool(find_runs(sweep.results)) and bool(sweep.lines()), "a repeat ends")
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, err
    document = json.loads(out)
    assert document["exit_code"] == 130
    assert len(document["trials"]) == len(sweep.lines())
    assert f"ended by {number.name}; " in err
    assert f"--resume {find_runs(sweep.results)[0]}" in err
    until(sweep.nothing_runs, "everything ends with its launcher")
    assert list(sweep.scratch.iterdir()) == []


def test_ctrl_c_on_a_terminal_keeps_what_is_finished_and_says_how_to_go_on(tmp_path):
    """The terminal sends Ctrl-C to every process in its foreground group; ranks are not among them."""
    sweep = KillableSweep(tmp_path)
    on_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = [sys.executable, str(DRIVER), "sweep", str(sweep.file), "-o", str(sweep.results)]
    terminal = subprocess.Popen(
        [sys.executable, "-c", on_terminal, *command],
        env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
        cwd=sweep.home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert terminal.stdin is not None
    until(lambda: bool(find_runs(sweep.results)) and len(sweep.lines()) >= 2, "two repeats end")
    terminal.stdin.write("\x03")
    terminal.stdin.flush()
    until(lambda: terminal.poll() is not None, "the sweep ends")
    shown = terminal.stdout.read() if terminal.stdout else ""
    assert terminal.returncode == 130
    assert " kept, continue with" in shown
    assert f"--resume {find_runs(sweep.results)[0]}" in shown
    until(sweep.nothing_runs, "everything ends with the sweep")
    kept = sweep.lines()
    document = sweep.finish()
    assert sweep.lines()[: len(kept)] == kept
    assert {record["outcome"] for record in document["trials"]} == {"ok"}
