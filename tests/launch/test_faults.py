"""Faults at random moments: every finished repeat stays, once; resume finishes; nothing is left behind.

A sweep has the faults of `CATALOGUE`. A study on PostgreSQL, which `zbench tune` and `zbench worker` share,
has those of `STUDY_CATALOGUE`.
"""

import collections
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.tune import postgres
from zbench.record.store import find_runs
from zbench.tune.storage import relational_storage

from .driver import PACE, VARIABLE
from .processes import until
from .rounds import LONGEST, PROCESSES, Command, Played, Round, Row, a_victim, records, send, victims

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


# --- a shared study

STUDY_POINTS = 6
Strike = Callable[[postgres.Server, dict[str, Command], random.Random], bool]


def _study_process(
    who: str,
    kind: str,
    number: signal.Signals,
    _: postgres.Server,
    commands: dict[str, Command],
    rng: random.Random,
) -> bool:
    victim = a_victim(commands[who], kind, rng)
    return victim is not None and send(victim, number, goes_on=kind != "rank")


def _end_server(
    number: signal.Signals, server: postgres.Server, _: dict[str, Command], rng: random.Random
) -> bool:
    """Kill the server with all its sessions, or let it refuse new ones before these end; start it again."""
    if number == signal.SIGKILL:
        server.kill()
    else:
        send(psutil.Process(server.pid), number, goes_on=False)
        time.sleep(rng.uniform(0.0, 2.0))
        server.stop("fast")
    time.sleep(rng.uniform(0.0, 2.0))
    server.start()
    return True


def _stop_server(server: postgres.Server, _: dict[str, Command], rng: random.Random) -> bool:
    """Stop the server and its sessions for a while: a database that does not answer."""
    main = psutil.Process(server.pid)
    stopped = [
        process for process in [main, *main.children()] if send(process, signal.SIGSTOP, goes_on=False)
    ]
    time.sleep(rng.uniform(0.5, 4.0))
    for process in stopped:
        send(process, signal.SIGCONT, goes_on=False)
    return True


def _session(
    number: signal.Signals, server: postgres.Server, _: dict[str, Command], rng: random.Random
) -> bool:
    """Signal one session of a client; if it is killed the server ends all sessions and recovers."""
    until(lambda: bool(server.sessions()), "a session begins", 10.0)
    return send(rng.choice(server.sessions()), number, goes_on=True)


_WHO = {
    "worker": ("worker", "command"),
    "worker's reaper": ("worker", "reaper"),
    "worker's server": ("worker", "server"),
    "worker's rank": ("worker", "rank"),
    "tune": ("tune", "command"),
}
STUDY_CATALOGUE: dict[str, Strike] = {
    **{
        f"{sent.name} {name}": partial(_study_process, *who, sent)
        for name, who in _WHO.items()
        for sent in SIGNALS
    },
    "SIGKILL PostgreSQL": partial(_end_server, signal.SIGKILL),
    "SIGSTOP PostgreSQL": _stop_server,
    "SIGTERM PostgreSQL": partial(_end_server, signal.SIGTERM),
    **{f"{sent.name} PostgreSQL session": partial(_session, sent) for sent in SIGNALS},
}


def play_study(home: Path, name: str, rng: random.Random) -> Played:
    """Play one round of a study with a fault of the catalogue; all wait in their first trial for it."""
    gate = home / "open"
    options = {"gate": str(gate)}
    study = Round(home, STUDY_POINTS, repeats=2, seconds=0.3, timeout="40s", options=options)
    struck = True
    try:
        with postgres.running() as server:
            study.environment |= {"ZBENCH_STORAGE": server.url, PACE: "1"}
            commands = {"tune": start_study(study, "asks")}
            wait_for_study(server.url, commands["tune"])
            commands["worker"] = study.start("worker", "--study", "faults", "-o", home / "helps")
            for one in commands.values():
                until(lambda c=one: victims(c, "rank") or c.poll() is not None, "it begins", LONGEST, 0.05)
            if rng.random() < 0.5:
                gate.touch()
                time.sleep(rng.uniform(0.0, 0.5))
            struck = STUDY_CATALOGUE[name](server, commands, rng)
            gate.touch()
            problems = [f"{who}: {p}" for who, one in commands.items() for p in study.wait(one)]
            rows = records(home / "asks")
            last = start_study(study, "asks")
            problems += [f"resumed: {problem}" for problem in study.wait(last)]
            problems += [] if last.returncode == 0 else [f"resume ended with {last.returncode}"]
        problems += [*study.left(), *finished_study(rows, home)]
    except (AssertionError, subprocess.SubprocessError, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"[:300]]
        study.kill_all()
    return Played(struck, "; ".join(problems) or None)


def start_study(study: Round, name: str) -> Command:
    """Begin the search, or continue it."""
    results = study.home / name
    again = ["--resume", "last"] if find_runs(results) else []
    return study.start("tune", study.file, "--method", "grid", *again, "-o", results)


def wait_for_study(url: str, command: Command) -> None:
    """Return once a worker can join."""
    studies = relational_storage(url)
    try:
        until(
            lambda: any(s.user_attrs for s in studies.get_all_studies()) or command.poll() is not None,
            "the study begins",
            LONGEST,
            pause=0.1,
        )
    finally:
        studies.engine.dispose()


def finished_study(first_rows: list[Row], home: Path) -> list[str]:
    """Return what is wrong at the end: a record lost, changed, twice, missing or not verified."""
    rows, others = records(home / "asks"), records(home / "helps")
    counts = collections.Counter(row[:2] for row in rows)
    points = {trial for trial, _ in counts}
    elsewhere = [row[0] for row in others if row[1] == 0]
    wrong = {
        "finished repeats were changed": not set(first_rows) <= set(rows),
        f"a repeat is there {max(counts.values(), default=0)} times": set(counts.values()) != {1},
        f"{len(points)} of {STUDY_POINTS} points": len(points) != STUDY_POINTS,
        "a worker's point is there twice": len(elsewhere) != len(set(elsewhere)),
        "not all are verified": {row[2:] for row in rows} != {("ok", "identical")},
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


# --- the campaign

ROUNDS = int(os.environ.get("SOAK_FAULTS", "220"))
TRIES = 5
NAMES = sorted([*CATALOGUE, *(STUDY_CATALOGUE if postgres.BINARIES is not None else ())])


def fault_of(number: int, seed: int) -> str:
    """Return the fault of a round: each of them once in every cycle, in an order drawn from the seed."""
    cycle, place = divmod(number, len(NAMES))
    order = [*NAMES]
    random.Random(f"{seed}/cycle {cycle}").shuffle(order)
    return order[place]


@pytest.mark.parametrize(
    "fault",
    [
        *(f"SIGKILL {kind}" for kind in ("command", "server", "rank")),
        *(pytest.param(name, marks=pytest.mark.check) for name in ("SIGKILL reaper", "fsync:ENOSPC")),
    ],
)
def test_a_fault_leaves_nothing_wrong(fault: str, tmp_path: Path) -> None:
    played = play(tmp_path, fault, random.Random(1))
    assert played.problem is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_random_fault_leaves_nothing_wrong(number: int) -> None:
    """One that came too late is played again, at another moment."""
    fault = fault_of(number, seed=0)
    play_it = play if fault in CATALOGUE else play_study
    for attempt in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory(prefix="fault-") as home:
            played = play_it(Path(home), fault, random.Random(f"0/{number}/{attempt}"))
        assert played.problem is None, fault
        if played.struck:
            return
    pytest.fail(f"{fault} came too late {TRIES} times")
