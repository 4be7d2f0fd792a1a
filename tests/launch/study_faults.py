"""Rounds of a shared study on PostgreSQL: `zbench tune`, `zbench worker`, and a signal to one of them."""

import collections
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from tests.tune import postgres
from zbench.record.store import find_runs
from zbench.tune.storage import relational_storage

from .faults import SIGNALS
from .injected import PACE
from .processes import until
from .rounds import LONGEST, Command, Played, Round, Row, a_victim, records, send, victims

POINTS = 6
Strike = Callable[[postgres.Server, dict[str, Command], random.Random], bool]


def is_possible() -> bool:
    """Whether PostgreSQL is installed."""
    return postgres.BINARIES is not None


def _process(
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
CATALOGUE: dict[str, Strike] = {
    **{
        f"{sent.name} {name}": partial(_process, *who, sent) for name, who in _WHO.items() for sent in SIGNALS
    },
    "SIGKILL PostgreSQL": partial(_end_server, signal.SIGKILL),
    "SIGSTOP PostgreSQL": _stop_server,
    "SIGTERM PostgreSQL": partial(_end_server, signal.SIGTERM),
    **{f"{sent.name} PostgreSQL session": partial(_session, sent) for sent in SIGNALS},
}


def play(home: Path, name: str, rng: random.Random) -> Played:
    """Play one round of a study with a fault of the catalogue; all wait in their first trial for it."""
    gate = home / "open"
    options = {"gate": str(gate)}
    study = Round(home, POINTS, repeats=2, seconds=0.3, timeout="40s", options=options)
    struck = True
    try:
        with postgres.running() as server:
            study.environment |= {"ZBENCH_STORAGE": server.url, PACE: "1"}
            commands = {"tune": start(study, "asks")}
            wait_for_study(server.url, commands["tune"])
            commands["worker"] = study.start("worker", "--study", "faults", "-o", home / "helps")
            for one in commands.values():
                until(lambda c=one: victims(c, "rank") or c.poll() is not None, "it begins", LONGEST, 0.05)
            if rng.random() < 0.5:
                gate.touch()
                time.sleep(rng.uniform(0.0, 0.5))
            struck = CATALOGUE[name](server, commands, rng)
            gate.touch()
            problems = [f"{who}: {p}" for who, one in commands.items() for p in study.wait(one)]
            rows = records(home / "asks")
            last = start(study, "asks")
            problems += [f"resumed: {problem}" for problem in study.wait(last)]
            problems += [] if last.returncode == 0 else [f"resume ended with {last.returncode}"]
        problems += [*study.left(), *finished(rows, home)]
    except (AssertionError, subprocess.SubprocessError, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"[:300]]
        study.kill_all()
    return Played(struck, "; ".join(problems) or None)


def start(study: Round, name: str) -> Command:
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


def finished(first_rows: list[Row], home: Path) -> list[str]:
    """Return what is wrong at the end: a record lost, changed, twice, missing or not verified."""
    rows, others = records(home / "asks"), records(home / "helps")
    counts = collections.Counter(row[:2] for row in rows)
    points = {trial for trial, _ in counts}
    elsewhere = [row[0] for row in others if row[1] == 0]
    wrong = {
        "finished repeats were changed": not set(first_rows) <= set(rows),
        f"a repeat is there {max(counts.values(), default=0)} times": set(counts.values()) != {1},
        f"{len(points)} of {POINTS} points": len(points) != POINTS,
        "a worker's point is there twice": len(elsewhere) != len(set(elsewhere)),
        "not all are verified": {row[2:] for row in rows} != {("ok", "identical")},
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]
