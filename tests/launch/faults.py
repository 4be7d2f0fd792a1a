"""One round of the fault campaign: a sweep of fake workers, one fault, and what must hold afterwards."""

import collections
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from zbench.record.store import find_runs

from .injected import VARIABLE
from .processes import MARK, marked, until

DRIVER = Path(__file__).with_name("driver.py")
POINTS, REPEATS = 4, 2
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
PROCESSES = ("command", "guard", "server", "rank")
CALLS = tuple(f"{call}:{name}" for call in ("open", "fsync") for name in ("ENOSPC", "EIO", "EMFILE"))
STOPPED_SECONDS = 0.5
LONGEST = 120.0


@dataclass(frozen=True)
class Fault:
    """What goes wrong: a signal to a process, a failing call in the command, or a limit on file size."""

    name: str
    strike: Callable[["Round", random.Random], bool]
    variables: dict[str, str]
    file_size: int | None = None


class Round:
    """A sweep in a process of its own, with a scratch directory of its own."""

    def __init__(self, home: Path) -> None:
        self.results, self.scratch, self.mark = home / "results", home / "tmp", uuid.uuid4().hex
        self.scratch.mkdir(parents=True)
        self.file = home / "sweep.json"
        sweep = {
            "name": "faults",
            "workload": {"model": "fake:model", "options": {"sleep": 0.05}},
            "run": {"world_size": 2, "repeats": REPEATS, "timeout": "4s"},
            "axes": {"reduce_bucket_size": [10_000 + n for n in range(POINTS)]},
        }
        self.file.write_text(json.dumps(sweep))
        path = os.pathsep.join([str(DRIVER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {MARK: self.mark, "TMPDIR": str(self.scratch), "PYTHONPATH": path}
        self.command: subprocess.Popen[str] | None = None

    def start(self, variables: dict[str, str], file_size: int | None) -> subprocess.Popen[str]:
        """Start the sweep, or continue it if there is a run directory."""
        again = ["--resume", "last"] if find_runs(self.results) else []

        def limit() -> None:
            if file_size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        self.command = subprocess.Popen(
            [sys.executable, str(DRIVER), "sweep", str(self.file), *again, "-o", str(self.results), "--json"],
            env=os.environ | self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )
        return self.command

    def victims(self, kind: str) -> list[psutil.Process]:
        """Return the living processes of a kind, by their depth below the command."""
        assert self.command is not None
        level = [psutil.Process(self.command.pid)]
        try:
            for _ in range(PROCESSES.index(kind)):
                level = [child for process in level for child in process.children()]
        except psutil.NoSuchProcess:
            return []
        return level

    def has_ended(self) -> bool:
        """Whether the command has ended."""
        return self.command is not None and self.command.poll() is not None

    def records(self) -> list[tuple[Any, ...]]:
        """Return what is on disk of every whole line."""
        runs = find_runs(self.results)
        if not runs:
            return []
        lines = (runs[0] / "trials.jsonl").read_text().split("\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [(r["trial_id"], r["repeat"], r["outcome"], r["correctness"]["verdict"]) for r in found]


def random_fault(rng: random.Random) -> Fault:
    """Draw a fault."""
    if rng.random() < 0.6:
        kind, number = rng.choice(PROCESSES), rng.choice(SIGNALS)

        def send(sweep: Round, draw: random.Random) -> bool:
            return _send(sweep, draw, kind, number)

        return Fault(f"{number.name} {kind}", send, {})
    if rng.random() < 0.75:
        call = rng.choice(CALLS)
        return Fault(call, lambda *_: True, {VARIABLE: f"{call}:{rng.randint(1, 30)}"})
    size = rng.randint(1, 8000)
    return Fault("file size limit", lambda *_: True, {}, size)


def play(home: Path, rng: random.Random) -> tuple[str, str | None]:
    """Play one round; return the fault's name and, if something did not hold, what."""
    fault, sweep = random_fault(rng), Round(home)
    try:
        command = sweep.start(fault.variables, fault.file_size)
        struck = fault.strike(sweep, rng)
        out, err = command.communicate(timeout=LONGEST)
        until(lambda: not marked(sweep.mark), "everything ends with the command", 30.0)
        kept = sweep.records()
        problems = [*_said(command.returncode, out, err), *_left(sweep)]
        last = sweep.start({}, None)
        out, err = last.communicate(timeout=LONGEST)
        until(lambda: not marked(sweep.mark), "everything ends with the resumed command", 30.0)
        problems += [*_finished(sweep, kept, last.returncode, err), *_left(sweep)]
    except (AssertionError, subprocess.TimeoutExpired, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"[:300]]
        for process in marked(sweep.mark):
            process.kill()
        struck = True
    name = fault.name if struck else "none (the sweep had ended)"
    return name, "; ".join(problems) or None


def _send(sweep: Round, rng: random.Random, kind: str, number: int) -> bool:
    """Signal one process of a kind at a random moment; a stopped command goes on after a while.

    A server is stopped once it has started: one that does not is waited for longer than a round may take.
    """
    if number == signal.SIGSTOP and kind in ("guard", "server"):
        until(lambda: bool(sweep.records()) or sweep.has_ended(), "a repeat ends")
    time.sleep(rng.uniform(0.0, 2.5))
    give_up = time.monotonic() + 5.0
    while time.monotonic() < give_up and not sweep.has_ended():
        living = sweep.victims(kind)
        if living:
            victim = rng.choice(living)
            try:
                victim.send_signal(number)
                if kind == "command" and number == signal.SIGSTOP:
                    time.sleep(STOPPED_SECONDS)
                    victim.send_signal(signal.SIGCONT)
            except psutil.NoSuchProcess:
                continue
            return True
        time.sleep(0.01)
    return False


def _said(code: int, out: str, err: str) -> list[str]:
    """Return what is wrong about how the command ended: a traceback, an undocumented status."""
    problems = [f"{word} on stderr" for word in ("Traceback", "internal error") if word in err]
    if code not in (0, 2, 6, 70, 130, -signal.SIGKILL, -signal.SIGTERM):  # -15: before it can handle one
        problems.append(f"exit status {code}")
    if code == 70 and not any(words in err for words in ("--resume", "cannot write", "did not start")):
        problems.append(f"status 70 without a way to go on: {err[-200:]}")
    return problems


def _left(sweep: Round) -> list[str]:
    return [f"left behind: {path.name}" for path in sweep.scratch.iterdir() if path.name != "pytest"]


def _finished(sweep: Round, kept: list[tuple[Any, ...]], code: int, err: str) -> list[str]:
    problems = [] if code == 0 else [f"resume ended with {code}: {err[-200:]}"]
    found = sweep.records()
    if found[: len(kept)] != kept:
        problems.append("finished repeats were changed")
    counts = collections.Counter(record[:2] for record in found)
    if len(counts) != POINTS * REPEATS or set(counts.values()) != {1}:
        problems.append(f"{len(counts)} of {POINTS * REPEATS} repeats, counts {sorted(set(counts.values()))}")
    bad = {record[2:] for record in found} - {("ok", "identical")}
    return [*problems, *([f"not verified: {bad}"] if bad else [])]
