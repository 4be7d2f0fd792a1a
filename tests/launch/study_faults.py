"""Rounds of a shared study on PostgreSQL: `zbench tune`, `zbench worker`, and a fault at one of them."""

import collections
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.tune import postgres
from zbench.record.store import find_runs
from zbench.tune.storage import relational_storage

from .injected import PACE
from .processes import until
from .rounds import PROCESSES, Command, Round, Row, a_victim, records, send, victims

POINTS = 6
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
Strike = Callable[[postgres.Server, dict[str, Command], random.Random], bool]


def is_possible() -> bool:
    """Whether PostgreSQL is installed."""
    return postgres.BINARIES is not None


def random_fault(rng: random.Random) -> tuple[str, Strike]:
    """Draw the name of a fault, and what does it."""
    if rng.random() < 0.4:
        return rng.choice([("SIGKILL PostgreSQL", kill_server), ("SIGSTOP PostgreSQL", stop_server),
                           ("SIGKILL PostgreSQL session", kill_session)])  # fmt: skip
    who, number = rng.choice(("tune", "worker", "worker", "worker")), rng.choice(SIGNALS)
    kind = rng.choice(PROCESSES)

    def strike(_: postgres.Server, commands: dict[str, Command], draw: random.Random) -> bool:
        victim = a_victim(commands[who], kind, draw)
        return victim is not None and send(victim, number, goes_on=kind != "rank")

    return f"{number.name} {who}: {kind}", strike


def kill_server(server: postgres.Server, _: dict[str, Command], rng: random.Random) -> bool:
    """Kill the server and all its sessions, and start it again after a while."""
    server.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    server.start()
    return True


def stop_server(server: postgres.Server, _: dict[str, Command], rng: random.Random) -> bool:
    """Stop the server and its sessions for a while: a database that does not answer."""
    main = psutil.Process(server.pid)
    stopped = [
        process for process in [main, *main.children()] if send(process, signal.SIGSTOP, goes_on=False)
    ]
    time.sleep(rng.uniform(0.5, 4.0))
    for process in stopped:
        send(process, signal.SIGCONT, goes_on=False)
    return True


def kill_session(server: postgres.Server, _: dict[str, Command], rng: random.Random) -> bool:
    """Kill one process of the server: it ends all sessions and recovers by itself."""
    sessions = psutil.Process(server.pid).children()
    return bool(sessions) and send(rng.choice(sessions), signal.SIGKILL, goes_on=False)


def play(home: Path, rng: random.Random) -> tuple[str, str | None]:
    """Play one round; return the fault's name and, if something did not hold, what."""
    name, strike = random_fault(rng)
    study, struck = Round(home, POINTS, repeats=2, seconds=0.6), True
    try:
        with postgres.running() as server:
            study.environment |= {"ZBENCH_STORAGE": server.url, PACE: "1"}
            commands = {"tune": start(study, "asks")}
            wait_for_study(server.url, commands["tune"])
            commands["worker"] = study.start("worker", "--study", "faults", "-o", home / "helps")
            until(lambda: all(map(is_at_work, commands.values())), "both have begun")
            time.sleep(rng.uniform(0.0, 1.5))
            struck = strike(server, commands, rng)
            problems = [f"{who}: {p}" for who, one in commands.items() for p in study.wait(one)]
            kept = records(home / "asks")
            last = start(study, "asks")
            problems += [f"resumed: {problem}" for problem in study.wait(last)]
            problems += [] if last.returncode == 0 else [f"resume ended with {last.returncode}"]
        problems += [*study.left(), *finished(kept, home)]
    except (AssertionError, subprocess.SubprocessError, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"[:300]]
        study.kill_all()
    return (name if struck else "none (the study had ended)"), "; ".join(problems) or None


def start(study: Round, name: str) -> Command:
    """Begin the search, or continue it."""
    results = study.home / name
    again = ["--resume", "last"] if find_runs(results) else []
    return study.start("tune", study.file, "--method", "grid", *again, "-o", results)


def is_at_work(command: Command) -> bool:
    """Whether a command has started its server, or has ended."""
    return command.poll() is not None or bool(victims(command, "server"))


def wait_for_study(url: str, command: Command) -> None:
    """Return once a worker can join."""
    studies = relational_storage(url)
    try:
        until(
            lambda: any(s.user_attrs for s in studies.get_all_studies()) or command.poll() is not None,
            "the study begins",
        )
    finally:
        studies.engine.dispose()


def finished(kept: list[Row], home: Path) -> list[str]:
    """Return what is wrong at the end: a record lost, changed, twice, missing or not verified."""
    found = records(home / "asks")
    problems = [] if set(kept) <= set(found) else ["finished repeats were changed"]
    counts = collections.Counter(record[:2] for record in found)
    if set(counts.values()) != {1}:
        problems.append(f"a repeat is there {max(counts.values())} times")
    if len({trial for trial, _ in counts}) != POINTS:
        problems.append(f"{len({trial for trial, _ in counts})} of {POINTS} points")
    both = set(records(home / "helps")) & {row for row in kept if row[1] == 0}
    elsewhere = collections.Counter(row[0] for row in records(home / "helps") if row[1] == 0)
    if any(count > 1 for count in elsewhere.values()) or any(row not in found for row in both):
        problems.append("a worker's point is there twice or missing")
    bad = {record[2:] for record in found} - {("ok", "identical")}
    return [*problems, *([f"not verified: {bad}"] if bad else [])]
