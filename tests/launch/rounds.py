"""One round of the fault campaign: commands with fake workers in a scratch directory, and what they leave."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from zbench.record.store import find_runs

from .driver import STRUCK
from .processes import MARK, marked, until

SHARED_MEMORY = Path("/dev/shm")
DRIVER = Path(__file__).with_name("driver.py")
PROCESSES = ("command", "reaper", "server", "rank")
STOPPED_SECONDS = 0.5
LONGEST = 600.0
Command = subprocess.Popen[str]
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Played:
    """A round: whether the fault came in time, and what did not hold."""

    struck: bool
    problem: str | None


class Round:
    """A sweep file, a scratch directory and an environment of their own; what was there before the round."""

    def __init__(
        self,
        home: Path,
        points: int,
        repeats: int,
        seconds: float = 0.15,
        timeout: str = "8s",
        options: dict[str, Any] | None = None,
    ) -> None:
        """seconds: how long a repeat takes. options: what else the fake workers do."""
        self.home = home
        self.scratch = home / "tmp"
        self.mark = uuid.uuid4().hex
        self.scratch.mkdir(parents=True)
        self.file = home / "sweep.json"
        self.points = points
        self.repeats = repeats
        sweep = {
            "name": "faults",
            "workload": {"model": "fake_worker:model", "options": {"sleep": seconds, **(options or {})}},
            "run": {"world_size": 2, "repeats": repeats, "timeout": timeout},
            "axes": {"reduce_bucket_size": [10_000 + n for n in range(points)]},
        }
        self.file.write_text(json.dumps(sweep))
        path = os.pathsep.join([str(DRIVER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._injected = home / "injected"
        self._shared_before = set(SHARED_MEMORY.iterdir())
        self.environment = {
            MARK: self.mark,
            "TMPDIR": str(self.scratch),
            "PYTHONPATH": path,
            STRUCK: str(self._injected),
        }

    @property
    def was_injected(self) -> bool:
        """Whether a fault that the driver injects has struck."""
        return self._injected.exists()

    def start(
        self, *words: object, variables: dict[str, str] | None = None, file_size: int | None = None
    ) -> Command:
        """Start a command with fake workers in a session of its own."""

        def limit() -> None:
            if file_size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        return subprocess.Popen(
            [sys.executable, str(DRIVER), *map(str, words), "--json"],
            env=os.environ | self.environment | (variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )

    def wait(self, command: Command) -> list[str]:
        """Return what is wrong about how a command ended, and what it said last."""
        out, err = command.communicate(timeout=LONGEST)
        return said(command.returncode, out, err)

    def left(self) -> list[str]:
        """Wait for the end of every process of the round; return what outlives them: files, shared memory
        that no process uses, and sockets in the round's directory."""
        until(lambda: not marked(self.mark), "everything ends with the command", 120.0, pause=0.1)
        files = [path for path in self.scratch.iterdir() if path.name != "pytest"]
        with contextlib.suppress(AssertionError):  # other tests' files come and go
            until(lambda: not self._abandoned(), "no shared memory is left", 10.0, pause=0.1)
        table = Path("/proc/net/unix").read_text().splitlines()
        sockets = [line.split()[-1] for line in table if str(self.home) in line]
        return [f"left behind: {one}" for one in (*files, *self._abandoned(), *sockets)]

    def _abandoned(self) -> list[Path]:
        return [path for path in set(SHARED_MEMORY.iterdir()) - self._shared_before if is_abandoned(path)]

    def kill_all(self) -> None:
        """End what a failed round left."""
        for process in marked(self.mark):
            process.kill()


def is_abandoned(path: Path) -> bool:
    """Whether a file of this user is there that no living process has open or mapped.

    multiprocessing removes the name of a semaphore right after it made it: such a name is another test's.
    """
    if path.name.startswith("sem.mp-"):
        return False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            used = [*process.memory_maps(), *process.open_files()]
            if any(file.path == str(path) for file in used):
                return False
    return path.exists() and path.stat().st_uid == os.getuid()


def records(results: Path) -> list[Row]:
    """Return what is on disk of every whole line of the first run: trial, repeat, outcome, verdict."""
    runs = find_runs(results)
    if not runs:
        return []
    lines = (runs[0] / "trials.jsonl").read_text().split("\n")[:-1]
    documents = [json.loads(line) for line in lines]
    return [(r["trial_id"], r["repeat"], r["outcome"], r["correctness"]["verdict"]) for r in documents]


def victims(command: Command, kind: str) -> list[psutil.Process]:
    """Return the living processes of a kind, by their depth below a command."""
    try:
        level = [psutil.Process(command.pid)]
        for _ in range(PROCESSES.index(kind)):
            level = [psutil.Process(pid) for process in level for pid in children(process.pid)]
    except psutil.NoSuchProcess:
        return []
    return [process for process in level if process.status() != psutil.STATUS_ZOMBIE]


def children(pid: int) -> list[int]:
    """Return the children of a process as the kernel lists them; psutil would look at every process."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, task.read_text().split())
    return pids


def a_victim(command: Command, kind: str, rng: random.Random) -> psutil.Process | None:
    """Wait up to a few seconds for a living process of a kind; None if the command ends before."""
    give_up = time.monotonic() + 20.0
    while time.monotonic() < give_up and command.poll() is None:
        try:
            if living := victims(command, kind):
                return rng.choice(living)
        except psutil.NoSuchProcess:
            continue
        time.sleep(0.01)
    return None


def send(victim: psutil.Process, number: int, *, goes_on: bool) -> bool:
    """Signal a process; one that is stopped and `goes_on` does so after a while. False if it has ended."""
    try:
        victim.send_signal(number)
        if goes_on and number == signal.SIGSTOP:
            time.sleep(STOPPED_SECONDS)
            victim.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return False
    return True


def said(code: int, out: str, err: str) -> list[str]:
    """Return what is wrong about how a command ended: a traceback, an undocumented status, no remedy."""
    problems = [f"{word} on stderr: {err[-600:]}" for word in ("Traceback", "internal error") if word in err]
    if code not in (0, 2, 6, 70, 130, -signal.SIGKILL, -signal.SIGTERM):  # -15: before it can handle one
        problems.append(f"exit status {code}: {err[-200:]}")
    if code == 70 and not any(words in err for words in ("--resume", "cannot write", "did not start")):
        problems.append(f"status 70 without a way to go on: {err[-200:]}")
    return problems
