"""Play many rounds of faults and write what was found: `python -m tests.launch.campaign --rounds 200`."""

import argparse
import collections
import random
import tempfile
from pathlib import Path

from .faults import play


def campaign(rounds: int, seed: int) -> tuple[collections.Counter[str], list[str]]:
    """Return how often each fault struck, and every counterexample with its round."""
    counts: collections.Counter[str] = collections.Counter()
    counterexamples = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="fault-") as home:
            name, problem = play(Path(home), random.Random(f"{seed}/{number}"))
        counts[name] += 1
        print(f"{number + 1}/{rounds} {name}: {problem or 'held'}", flush=True)
        if problem is not None:
            counterexamples.append(f"round {seed}/{number}, {name}: {problem}")
    return counts, counterexamples


def main() -> None:
    """Run the campaign and print its table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts, counterexamples = campaign(given.rounds, given.seed)
    print("| fault | rounds |\n|---|---|")
    for name, count in sorted(counts.items()):
        print(f"| {name} | {count} |")
    print(f"\n{len(counterexamples)} counterexamples")
    for text in counterexamples:
        print(f"- {text}")


if __name__ == "__main__":
    main()
