"""Find the first bad revision of a list by comparing revisions with the good one. Pure: a probe is given.

What is sought is a step from good to bad, as `git bisect` seeks it; a probe may also answer that it cannot
tell (skip: the revision does not build or run) or does not know yet (undecided: measure again, never guess).
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Literal

Finding = Literal["good", "bad", "skip", "undecided"]
Probe = Callable[[str], Finding]


@dataclass(frozen=True, slots=True)
class Found:
    """The first bad revision, or the candidates among which it is where some could not be judged."""

    candidates: tuple[str, ...]
    probes: int

    @property
    def first_bad(self) -> str | None:
        """Return the first bad revision, None where several are left."""
        return self.candidates[0] if len(self.candidates) == 1 else None


def bisect(
    revisions: Sequence[str], probe: Probe, known: MutableMapping[str, Finding], *, attempts: int = 3
) -> Found:
    """Return the first bad one of `revisions`: oldest first, the first known good and the last known bad.

    known: what earlier probes found; a new finding is put there as soon as it is known, so that an
    interrupted search goes on where it stopped. An undecided probe is repeated up to `attempts` times, and
    then skipped. A skipped revision's neighbour is asked instead.
    """
    low, high, probes = 0, len(revisions) - 1, 0
    while True:
        open_ones = [i for i in range(low + 1, high) if known.get(revisions[i]) != "skip"]
        if not open_ones:
            return Found(tuple(revisions[low + 1 : high + 1]), probes)
        middle = min(open_ones, key=lambda i: abs(i - (low + high) / 2))
        name = revisions[middle]
        for _ in range(attempts):
            if known.get(name) in ("good", "bad", "skip"):
                break
            finding = probe(name)
            probes += 1
            known[name] = finding
        if known[name] == "undecided":
            known[name] = "skip"
        if known[name] == "good":
            low = middle
        elif known[name] == "bad":
            high = middle


def judged(answers: Sequence[str], sought: str) -> Finding:
    """Return what a comparison of good with a candidate says, by the answers of its rows.

    sought: the answer of good against bad (`incorrect`, `failed`, `regression`), so that another fault on
    the way is not taken for the one that is looked for.
    """
    if sought in answers:
        return "bad"
    doubtful = {"suspected", "inconclusive", "unchecked"} & set(answers)
    return "undecided" if doubtful else "good"
