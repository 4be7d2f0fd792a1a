"""Play rounds of faults: `python -m tests.launch.campaign --rounds 220 --seed 0`.

Every cycle of rounds plays each fault of both catalogues once, in an order drawn from the seed. A fault that
came too late is played again, at another moment.
"""

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import faults, study_faults

TRIES = 5


@dataclass(frozen=True)
class Entry:
    """A round that was played. struck: whether the fault came in time. problem: what did not hold."""

    number: int
    fault: str
    struck: bool
    problem: str | None


def names() -> list[str]:
    """Return all faults that can be played here."""
    return [*faults.CATALOGUE, *(study_faults.CATALOGUE if study_faults.is_possible() else ())]


def fault_of(number: int, seed: int, among: Sequence[str]) -> str:
    """Return the fault of a round: each of them once in every cycle."""
    cycle, place = divmod(number, len(among))
    order = sorted(among)
    random.Random(f"{seed}/cycle {cycle}").shuffle(order)
    return order[place]


def campaign(rounds: range, seed: int) -> Iterator[Entry]:
    """Play rounds of a seed, each until its fault has struck, or something does not hold."""
    for number in rounds:
        fault = fault_of(number, seed, names())
        catalogue = faults if fault in faults.CATALOGUE else study_faults
        for attempt in range(1, TRIES + 1):
            rng = random.Random(f"{seed}/{number}/{attempt}")
            with tempfile.TemporaryDirectory(prefix="fault-") as home:
                played = catalogue.play(Path(home), fault, rng)
            if played.struck or played.problem is not None:
                break
        yield Entry(number, fault, played.struck, played.problem)


def main() -> None:
    """Play the rounds of a campaign and say what each showed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=220)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for entry in campaign(range(given.first, given.rounds), given.seed):
        print(f"{entry.number} {entry.fault}, struck: {entry.struck}: {entry.problem or 'held'}", flush=True)


if __name__ == "__main__":
    main()
