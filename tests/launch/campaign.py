"""Play many rounds of faults and write what was found: `python -m tests.launch.campaign --rounds 200`.

Where this user may (root, as a rule), the campaign has mounts and a network of its own, so that a file left
in `/dev/shm` and a socket left open are seen.
"""

import argparse
import collections
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import faults, isolation, study_faults

SHARE_OF_STUDIES = 0.15


@dataclass
class Found:
    """How often each fault struck, how often all held, and every counterexample with its round."""

    struck: collections.Counter[str] = field(default_factory=collections.Counter)
    broken: collections.Counter[str] = field(default_factory=collections.Counter)
    counterexamples: list[str] = field(default_factory=list)

    def table(self) -> Iterator[str]:
        """Yield the lines of a table in Markdown, and the counterexamples below it."""
        yield "| fault | rounds | did not hold |\n|---|---|---|"
        for name, count in sorted(self.struck.items()):
            yield f"| {name} | {count} | {self.broken[name] or ''} |"
        yield f"\n{len(self.counterexamples)} counterexamples in {self.struck.total()} rounds"
        yield from (f"- {text}" for text in self.counterexamples)


def campaign(rounds: int, seed: int, first: int = 0) -> Found:
    """Play rounds `first` to `rounds - 1` of a seed; each can be played again by itself."""
    found = Found()
    for number in range(first, rounds):
        rng = random.Random(f"{seed}/{number}")
        is_study = rng.random() < SHARE_OF_STUDIES and study_faults.is_possible()
        with tempfile.TemporaryDirectory(prefix="fault-") as home:
            name, problem = (study_faults if is_study else faults).play(Path(home), rng)
        found.struck[name] += 1
        print(f"{number + 1}/{rounds} {name}: {problem or 'held'}", flush=True)
        if problem is not None:
            found.broken[name] += 1
            found.counterexamples.append(f"round {seed}/{number}, {name}: {problem}")
    return found


def main() -> None:
    """Run the campaign and print its table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="begin with this round")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    isolation.enter()
    print(f"shared names are {'checked' if isolation.is_isolated() else 'not checked (no namespaces)'}")
    for line in campaign(given.rounds, given.seed, given.first).table():
        print(line)


if __name__ == "__main__":
    main()
