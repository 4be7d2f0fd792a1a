"""The faults that strike a sweep, by name, and the round of each: what goes wrong, what must hold then."""

import collections
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from zbench.record.store import find_runs

from .injected import VARIABLE
from .processes import until
from .rounds import LONGEST, PROCESSES, Command, Played, Round, Row, a_victim, records, send

POINTS, REPEATS = 4, 2
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
CALLS = ("open", "fsync")
ERRORS = ("ENOSPC", "EIO", "EMFILE")
LIMITS = ("memory", "descriptor")
CLOCKS = (-86_400, -5, 5, 86_400, 400 * 86_400)
_FAILED = {("oom", "unchecked"), ("crashed", "unchecked")}


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `strike` does it to a sweep under way and says whether it came in time.

    variables: what the driver injects, which leaves a mark when it strikes. outcomes: how repeats may have
    ended besides well, since the fault struck what they measure. most_failed: how many configurations may.
    """

    strike: Callable[[Command, Path], bool] = lambda *_: True
    variables: dict[str, str] = field(default_factory=dict)
    file_size: int | None = None
    outcomes: frozenset[tuple[str, str]] = frozenset()
    most_failed: int = 1


def _signal(kind: str, number: signal.Signals, rng: random.Random) -> Fault:
    """Kill, stop or end a process of a sweep at a random moment."""

    def strike(command: Command, results: Path) -> bool:
        if number == signal.SIGSTOP and kind in ("reaper", "server"):
            # one that is stopped while it starts is waited for longer than a round may take
            until(lambda: bool(records(results)) or command.poll() is not None, "a repeat ends", LONGEST)
        time.sleep(rng.uniform(0.0, 2.5))
        victim = a_victim(command, kind, rng)
        return victim is not None and send(victim, number, goes_on=kind == "command")

    return Fault(strike)


def _injected(event: str, most: int, rng: random.Random) -> Fault:
    """Let one of the first so many calls of the command fail, stall or jump."""
    return Fault(variables={VARIABLE: f"{event}:{rng.randint(1, most)}"})


def _full_file(rng: random.Random) -> Fault:
    """Limit the size of the files that the command and its children write: a disk that fills in mid-write."""
    return Fault(file_size=rng.randint(1, 8000))


def _limit(kind: str, limit: str, rng: random.Random) -> Fault:
    """Take memory or file descriptors from a process that runs: its next requests are refused."""

    def strike(command: Command, results: Path) -> bool:
        # before it there is nothing to lose, and Python's own start cannot be guarded
        until(lambda: bool(find_runs(results)) or command.poll() is not None, "the sweep begins", LONGEST)
        time.sleep(rng.uniform(0.0, 2.0))
        victim = a_victim(command, kind, rng)
        of_memory = limit == "memory"
        try:
            if victim is None:
                return False
            held = victim.memory_info().vms if of_memory else victim.num_fds()
            more = rng.choice((0, 1 << 20, 16 << 20)) if of_memory else rng.choice((0, 1, 4))
            which = resource.RLIMIT_AS if of_memory else resource.RLIMIT_NOFILE
            resource.prlimit(victim.pid, which, (held + more, resource.prlimit(victim.pid, which)[1]))
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False
        return True

    # ranks inherit the server's limit, and one that ran out of memory implies that larger points do
    most = POINTS if (kind, limit) == ("server", "memory") else 1
    return Fault(strike, outcomes=frozenset(_FAILED), most_failed=most)


CATALOGUE: dict[str, Callable[[random.Random], Fault]] = {
    **{f"{sent.name} {kind}": partial(_signal, kind, sent) for kind in PROCESSES for sent in SIGNALS},
    **{f"{call}:{error}": partial(_injected, f"{call}:{error}", 12) for call in CALLS for error in ERRORS},
    **{f"{call} stalls for 10 s": partial(_injected, f"{call}:STALL", 12) for call in CALLS},
    **{f"clock jumps by {seconds:+} s": partial(_injected, f"clock:{seconds}", 3) for seconds in CLOCKS},
    "file size limit": _full_file,
    **{f"{limit} limit {kind}": partial(_limit, kind, limit) for limit in LIMITS for kind in PROCESSES},
}  # fmt: skip


def play(home: Path, name: str, rng: random.Random) -> Played:
    """Play one round of a sweep with a fault of the catalogue."""
    fault = CATALOGUE[name](rng)
    sweep = Round(home, POINTS, REPEATS)
    results = home / "results"
    struck = True

    def start(variables: dict[str, str], file_size: int | None) -> Command:
        again = ["--resume", "last"] if find_runs(results) else []
        words = ["sweep", sweep.file, *again, "-o", results]
        return sweep.start(*words, variables=variables, file_size=file_size)

    try:
        command = start(fault.variables, fault.file_size)
        struck = fault.strike(command, results)
        problems = [*sweep.wait(command), *sweep.left()]
        struck = struck and (not fault.variables or sweep.was_injected)
        struck = struck and (fault.file_size is None or command.returncode != 0)
        rows = records(results)
        last = start({}, None)
        problems += [*sweep.wait(last), *sweep.left()]
        problems += finished(rows, records(results), fault)
        if last.returncode not in ((0, 6) if fault.outcomes else (0,)):
            problems.append(f"resume ended with {last.returncode}")
    except (AssertionError, subprocess.TimeoutExpired, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"[:300]]
        sweep.kill_all()
    return Played(struck, "; ".join(problems) or None)


def finished(first_rows: list[Row], rows: list[Row], fault: Fault) -> list[str]:
    """Return what is wrong with the records at the end: lost, changed, twice, missing or not verified."""
    problems = [] if rows[: len(first_rows)] == first_rows else ["finished repeats were changed"]
    counts = collections.Counter(record[:2] for record in rows)
    failed = {record[0] for record in rows if record[2:] in fault.outcomes}
    total = (POINTS - len(failed)) * REPEATS
    whole = {key: count for key, count in counts.items() if key[0] not in failed}
    if len(failed) > fault.most_failed or len(whole) != total or set(counts.values()) != {1}:
        problems.append(f"{len(counts)} repeats, {len(failed)} failed, counts {sorted(set(counts.values()))}")
    bad = {record[2:] for record in rows} - {("ok", "identical")} - fault.outcomes
    return [*problems, *([f"not verified: {bad}"] if bad else [])]
