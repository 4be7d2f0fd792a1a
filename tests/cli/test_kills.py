"""SIGKILL of every command, or of a process below it, at drawn moments; then the same command again."""

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.analysis.synthetic import trial, write_run
from tests.cli.conftest import stand_in
from tests.launch.driver import PACE
from tests.launch.processes import MARK, marked, until
from tests.launch.rounds import DRIVER, said
from zbench.cli.main import COMMANDS
from zbench.record.checking import checked

PAIR = ("--paired", "--sweep", "sweep.json", "--blocks", "7")
SEARCH = ("--budget", "6trials", "--objective", "minimize:median_step_s")
STUDY = ("--storage", "sqlite:///study.db", "--study", "s")
VERSIONS = ("--sweep", "sweep.json", "--versions", "./v1,./v2,./v3")

CONTINUED = {
    "sweep": ("sweep", "sweep.json"),
    "tune": ("tune", "sweep.json", *SEARCH),
    "compare --paired": ("compare", "./v0", "./v4", *PAIR),
}
AGAIN = {
    "run": ("run", "--set", "workload.model=fake_worker:model"),
    "bisect": ("bisect", "./v0", "./v4", *VERSIONS),
    "worker": ("worker", *STUDY),
    "init": ("init", "new"),
    "publish": ("publish", "-o", "kept", "--to", "site"),
    "plan": ("plan", "sweep.json"),
    "estimate": ("estimate", "estimate.json"),
    "show": ("show", "-o", "kept"),
    "list": ("list", "-o", "kept"),
    "compare": ("compare", "last~1", "last", "-o", "kept", "--save-baseline", "main"),
    "tag": ("tag", "last", "new", "-o", "kept"),
    "history": ("history", "-o", "kept"),
    "report": ("report", "-o", "kept", "--html", "report.html"),
    "export": ("export", "estimate.json", "--output", "new"),
    "check": ("check", "kept"),
    "prune": ("prune", "-o", "kept"),
    "schema": ("schema",),
    "doctor": ("doctor",),
}


class Place:
    """A directory with what all commands need, and the processes that were started in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.temporary = home / "tmp"
        self._mark = f"kills-{home}"
        self.temporary.mkdir(parents=True)
        sweep = {
            "name": "tried",
            "workload": {"model": "fake_worker:model", "options": {"sleep": 0.1}},
            "run": {"world_size": 1, "repeats": 2, "timeout": "60s"},
            "axes": {"zero_stage": [0, 1, 2]},
        }
        (home / "sweep.json").write_text(json.dumps(sweep))
        simulated = {"name": "e", "workload": {"model": "mlp"}, "axes": {"zero_stage": [1]}}
        (home / "estimate.json").write_text(json.dumps(simulated))
        for number in range(5):
            stand_in(home / f"v{number}", peak=10**6 * (1 + (number > 2)))
        for number in range(1, 5):
            write_run(home / f"kept/ex/2026010{number}-000000-00000", trial([0.1] * 2))

    def begin_study(self) -> None:
        """Kill a shared search after its first trial, so that a worker has something to do."""
        search = self.start("tune", "sweep.json", *SEARCH, *STUDY)
        until(lambda: bool(self.lines()), "the first trial ends")
        search.kill()
        search.communicate()
        self.ends()

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command with fake workers, without the new file that an earlier one wrote."""
        (self.home / "new").unlink(missing_ok=True)
        path = os.pathsep.join([str(DRIVER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(
            [sys.executable, str(DRIVER), *words],
            cwd=self.home,
            env=os.environ | {MARK: self._mark, "TMPDIR": str(self.temporary), "PYTHONPATH": path, PACE: "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, words: tuple[str, ...], after: float, rng: random.Random) -> bool:
        """Kill the command, or a process below it, after some seconds; say whether it came in time."""
        command = self.start(*words)
        time.sleep(after)
        below = [process for process in marked(self._mark) if process.pid != command.pid]
        victim = rng.choice(below) if below and rng.random() < 0.5 else psutil.Process(command.pid)
        struck = command.poll() is None
        if victim.is_running():
            victim.kill()
        _, err = command.communicate(timeout=300)
        self.ends()
        assert said(command.returncode if command.returncode not in (1, 3, 4) else 0, "", err) == []
        return struck

    def finish(self, words: tuple[str, ...]) -> float:
        """Run the command to its end, which removes what the killed one left; return its seconds."""
        begin = time.monotonic()
        command = self.start(*words)
        _, err = command.communicate(timeout=300)
        assert command.returncode in (0, 1, 3), err
        seconds = time.monotonic() - begin
        self.ends()
        assert [path.name for path in self.temporary.iterdir()] == []
        return seconds

    def ends(self) -> None:
        """Wait for the end of all processes; no lock may be held, no file be damaged, and none be half."""
        until(lambda: not marked(self._mark), "everything ends with the command", 120.0, pause=0.05)
        for lock in self.home.rglob("*.lock"):
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        places = [self.home / name for name in ("kept", "results", "site")]
        files = [file for place in places if place.is_dir() for file in checked(place)]
        assert [file.problem for file in files if file.problem] == []
        new = self.home / "new"
        whole = self.home.parent / "whole" / "new"
        assert not new.exists() or new.read_bytes() == whole.read_bytes()

    def lines(self) -> list[bytes]:
        """Return every whole line of records and samples, in order of their runs."""
        files = [*self.home.glob("results/*/*/trials.jsonl"), *self.home.glob("results/paired/*.jsonl")]
        text = b"".join(file.read_bytes() for file in sorted(files))
        return text[: text.rfind(b"\n") + 1].splitlines()


KILLS = int(os.environ.get("SOAK_KILLS", "40"))
BATCH = 4  # kills of one place


def place_of(home: Path, name: str) -> Place:
    """Return a place where a command has something to do."""
    place = Place(home)
    if name == "worker":
        place.begin_study()
    return place


def play(home: Path, name: str, kills: int) -> None:
    """Kill a command so often in time, and finish it after each batch of kills."""
    rng = random.Random(name)
    struck = 0
    batch = 0
    words = (CONTINUED | AGAIN)[name]
    longest = place_of(home / "whole", name).finish(words)
    while struck < kills:
        batch += 1
        place = place_of(home / str(batch), name)
        more = tuple[str, ...]()
        prefix = place.lines()
        for _ in range(min(BATCH, kills)):
            struck += place.kill((*words, *more), rng.uniform(0, longest), rng)
            lines = place.lines()
            assert lines[: len(prefix)] == prefix, "nothing is lost or changed"
            prefix = lines
            more = ("--resume", "last") if lines and name in CONTINUED else ()
        place.finish((*words, *more))
        whole = place.lines()
        assert whole[: len(prefix)] == prefix
        assert len({*whole}) == len(whole), "nothing is doubled"
    print(f"{name}: {struck} kills came in time")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak) for name in CONTINUED | AGAIN])
def test_a_command_that_is_killed_leaves_nothing_wrong(tmp_path: Path, name: str) -> None:
    play(tmp_path, name, KILLS if name in CONTINUED else KILLS // 5)


def test_every_command_is_killed() -> None:
    assert {words[0] for words in (CONTINUED | AGAIN).values()} == {*COMMANDS}


@pytest.mark.parametrize("name", ["publish", *(pytest.param(n, marks=pytest.mark.check) for n in CONTINUED)])
def test_one_kill_leaves_nothing_wrong(tmp_path: Path, name: str) -> None:
    play(tmp_path, name, 1)
