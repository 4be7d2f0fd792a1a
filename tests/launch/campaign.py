"""Play rounds of faults and note what was found: `python -m tests.launch.campaign --rounds 220 --log FILE`.

Every cycle of rounds plays each fault of both catalogues once, in an order drawn from the seed. A fault that
came too late is played again, at another moment. Rounds that the log holds are not played again, so a
campaign can be cut short and continued, and several processes may play one at the same time.

Where this user may (root, as a rule), the campaign has mounts and a network of its own, so that a file left
in `/dev/shm` and a socket left open are seen.
"""

import argparse
import collections
import hashlib
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

import zbench

from . import faults, isolation, study_faults

TRIES = 5


@dataclass(frozen=True)
class Entry:
    """A round that was played. tries: how often, until the fault struck. problem: what did not hold."""

    number: int
    seed: int
    fault: str
    tries: int
    struck: bool
    problem: str | None
    seconds: float
    code: str


def names() -> list[str]:
    """Return all faults that can be played here."""
    return [*faults.CATALOGUE, *(study_faults.CATALOGUE if study_faults.is_possible() else ())]


def fault_of(number: int, seed: int, among: Sequence[str]) -> str:
    """Return the fault of a round: each of them once in every cycle."""
    cycle, place = divmod(number, len(among))
    order = sorted(among)
    random.Random(f"{seed}/cycle {cycle}").shuffle(order)
    return order[place]


def play(number: int, seed: int, fault: str) -> Entry:
    """Play a round until its fault has struck, or something does not hold."""
    began, catalogue = time.monotonic(), faults if fault in faults.CATALOGUE else study_faults
    for attempt in range(1, TRIES + 1):
        rng = random.Random(f"{seed}/{number}/{attempt}")
        with tempfile.TemporaryDirectory(prefix="fault-") as home:
            played = catalogue.play(Path(home), fault, rng)
        if played.struck or played.problem is not None:
            break
    seconds = round(time.monotonic() - began, 1)
    return Entry(number, seed, fault, attempt, played.struck, played.problem, seconds, code())


def campaign(
    rounds: int, seed: int, log: Path | None = None, among: str = "", minutes: float = math.inf
) -> list[Entry]:
    """Play the rounds of a seed that the log does not hold; return all of them, those of the log, too.

    among: only faults whose names contain it. minutes: no round begins after them.
    """
    end = time.monotonic() + 60 * minutes
    found: list[Entry] = []
    for number in range(rounds):
        fault = fault_of(number, seed, names())
        if time.monotonic() > end:
            break
        if among not in fault or (log is not None and not takes(log, number, seed)):
            continue
        entry = play(number, seed, fault)
        found.append(entry)
        print(f"{number} {entry.fault}, {entry.tries} tries: {entry.problem or 'held'}", flush=True)
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps(asdict(entry)) + "\n")
            log.with_suffix(f".{seed}-{number}").unlink()
    return found if log is None else [entry for entry in read(log) if entry.seed == seed]


def takes(log: Path, number: int, seed: int) -> bool:
    """Whether a round is left, and this process is the one that plays it."""
    mine = log.with_suffix(f".{seed}-{number}")
    try:
        with mine.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        if psutil.pid_exists(int(mine.read_text() or os.getpid())):
            return False
        mine.unlink()  # who took it was killed
        return takes(log, number, seed)
    if any((entry.number, entry.seed) == (number, seed) for entry in read(log)):
        mine.unlink()
        return False
    return True


def read(log: Path) -> list[Entry]:
    """Return the rounds of a log."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [Entry(**json.loads(line)) for line in lines]


def table(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, and the counterexamples below it."""
    entries = list(entries)
    played = collections.Counter(entry.fault for entry in entries)
    struck = collections.Counter(entry.fault for entry in entries if entry.struck)
    broken = collections.Counter(entry.fault for entry in entries if entry.problem is not None)
    yield "| fault | rounds | struck | did not hold |\n|---|---|---|---|"
    for name in sorted(played):
        yield f"| {name} | {played[name]} | {struck[name]} | {broken[name] or ''} |"
    yield f"\n{broken.total()} counterexamples in {played.total()} rounds, {struck.total()} of them struck;"
    yield f"code: {', '.join(dict.fromkeys(entry.code for entry in entries))}"
    yield from (
        f"- round {entry.seed}/{entry.number}, {entry.fault}: {entry.problem}"
        for entry in entries
        if entry.problem is not None
    )


def code() -> str:
    """Return a checksum of zbench's Python files: which code a round was played on."""
    digest = hashlib.sha256()
    for file in sorted(Path(zbench.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def main() -> None:
    """Play what is left of a campaign and print its table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=220)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="where rounds are noted, one a line of JSON")
    parser.add_argument("--among", default="", metavar="TEXT", help="only faults whose names contain it")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no round after so long")
    given = parser.parse_args()
    isolation.enter()
    print(f"shared names are {'checked' if isolation.is_isolated() else 'not checked (no namespaces)'}")
    played = campaign(given.rounds, given.seed, given.log, given.among, given.minutes)
    for line in table(played):
        print(line)


if __name__ == "__main__":
    main()
