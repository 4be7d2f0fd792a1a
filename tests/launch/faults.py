"""The faults that strike a sweep, and the round of each: what goes wrong, and what must hold afterwards."""

import collections
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from zbench.record.store import find_runs

from .injected import VARIABLE
from .processes import until
from .rounds import PROCESSES, Command, Round, Row, a_victim, records, send

POINTS, REPEATS = 4, 2
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
CALLS = tuple(f"{call}:{name}" for call in ("open", "fsync") for name in ("ENOSPC", "EIO", "EMFILE"))
CLOCKS = (-86_400, -5, 5, 86_400, 400 * 86_400)
_FAILED = {("oom", "unchecked"), ("crashed", "unchecked")}


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `strike` does it to a sweep under way and says whether it came in time.

    variables: what the driver injects. outcomes: how repeats may have ended besides well, since the fault
    struck what they measure.
    """

    name: str
    strike: Callable[[Command, Path, random.Random], bool] = lambda *_: True
    variables: dict[str, str] = field(default_factory=dict)
    file_size: int | None = None
    outcomes: frozenset[tuple[str, str]] = frozenset()


def a_signal(rng: random.Random) -> Fault:
    """Kill, stop or end a process of a sweep at a random moment."""
    kind, number = rng.choice(PROCESSES), rng.choice(SIGNALS)

    def strike(command: Command, results: Path, draw: random.Random) -> bool:
        if number == signal.SIGSTOP and kind in ("guard", "server"):
            # one that is stopped while it starts is waited for longer than a round may take
            until(lambda: bool(records(results)) or command.poll() is not None, "a repeat ends")
        time.sleep(draw.uniform(0.0, 2.5))
        victim = a_victim(command, kind, draw)
        return victim is not None and send(victim, number, goes_on=kind == "command")

    return Fault(f"{number.name} {kind}", strike)


def a_failing_call(rng: random.Random) -> Fault:
    """Let one `open` or `fsync` of the command fail."""
    call = rng.choice(CALLS)
    return Fault(call, variables={VARIABLE: f"{call}:{rng.randint(1, 30)}"})


def a_stalled_disk(rng: random.Random) -> Fault:
    """Let one `open` or `fsync` of the command take longer than a trial may."""
    call = rng.choice(("open", "fsync"))
    return Fault(f"{call} stalls for 6 s", variables={VARIABLE: f"{call}:STALL:{rng.randint(1, 30)}"})


def a_jumping_clock(rng: random.Random) -> Fault:
    """Let the wall clock of the command, the server and the ranks jump, each at its own reading of it."""
    seconds = rng.choice(CLOCKS)
    return Fault(
        f"clock jumps by {seconds:+} s", variables={VARIABLE: f"clock:{seconds}:{rng.randint(1, 6)}"}
    )


def a_full_file(rng: random.Random) -> Fault:
    """Limit the size of the files that the command and its children write: a disk that fills in mid-write."""
    return Fault("file size limit", file_size=rng.randint(1, 8000))


def a_limit(rng: random.Random) -> Fault:
    """Take memory or file descriptors from a process that runs: its next requests are refused."""
    kind, of_memory = rng.choice(PROCESSES), rng.random() < 0.6

    def strike(command: Command, results: Path, draw: random.Random) -> bool:
        # before it there is nothing to lose, and Python's own start cannot be guarded
        until(lambda: bool(find_runs(results)) or command.poll() is not None, "the sweep begins")
        time.sleep(draw.uniform(0.0, 2.0))
        victim = a_victim(command, kind, draw)
        try:
            if victim is None:
                return False
            held = victim.memory_info().vms if of_memory else victim.num_fds()
            more = draw.choice((0, 1 << 20, 16 << 20)) if of_memory else draw.choice((0, 1, 4))
            which = resource.RLIMIT_AS if of_memory else resource.RLIMIT_NOFILE
            resource.prlimit(victim.pid, which, (held + more, resource.prlimit(victim.pid, which)[1]))
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False
        return True

    what = "memory" if of_memory else "descriptor"
    return Fault(f"{what} limit {kind}", strike, outcomes=frozenset(_FAILED))


KINDS = {a_signal: 40, a_failing_call: 16, a_stalled_disk: 8, a_jumping_clock: 8, a_full_file: 8, a_limit: 20}


def play(home: Path, rng: random.Random) -> tuple[str, str | None]:
    """Play one round of a sweep; return the fault's name and, if something did not hold, what."""
    (make,) = rng.choices(list(KINDS), list(KINDS.values()))
    fault, sweep, results = make(rng), Round(home, POINTS, REPEATS), home / "results"
    struck = True

    def start(variables: dict[str, str], file_size: int | None) -> Command:
        again = ["--resume", "last"] if find_runs(results) else []
        words = ["sweep", sweep.file, *again, "-o", results]
        return sweep.start(*words, variables=variables, file_size=file_size)

    try:
        command = start(fault.variables, fault.file_size)
        struck = fault.strike(command, results, rng)
        problems = [*sweep.wait(command), *sweep.left()]
        kept = records(results)
        last = start({}, None)
        problems += [*sweep.wait(last), *sweep.left()]
        problems += finished(kept, records(results), fault)
        if last.returncode not in ((0, 6) if fault.outcomes else (0,)):
            problems.append(f"resume ended with {last.returncode}")
    except (AssertionError, subprocess.TimeoutExpired, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"[:300]]
        sweep.kill_all()
    return fault.name if struck else "none (the sweep had ended)", "; ".join(problems) or None


def finished(kept: list[Row], found: list[Row], fault: Fault) -> list[str]:
    """Return what is wrong with the records at the end: lost, changed, twice, missing or not verified."""
    problems = [] if found[: len(kept)] == kept else ["finished repeats were changed"]
    counts = collections.Counter(record[:2] for record in found)
    failed = {record[0] for record in found if record[2:] in fault.outcomes}
    wanted = (POINTS - len(failed)) * REPEATS
    whole = {key: count for key, count in counts.items() if key[0] not in failed}
    if len(failed) > 1 or len(whole) != wanted or set(counts.values()) != {1}:
        problems.append(f"{len(counts)} repeats, {len(failed)} failed, counts {sorted(set(counts.values()))}")
    bad = {record[2:] for record in found} - {("ok", "identical")} - fault.outcomes
    return [*problems, *([f"not verified: {bad}"] if bad else [])]
