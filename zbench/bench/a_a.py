"""Compare a version with itself while other processes keep every core busy: count the false claims.

    python -m zbench.bench.a_a [--pairs N] [--one-sided N] [--paired N] --out FILE

Stored: two runs of 5 repeats, compared as `zbench compare` compares them, with the earlier runs as history.
The load (`zbench.bench.neighbour`) runs during both runs; in further pairs during base only (head then seems
much faster) or during head only. Paired: `zbench compare --paired`, under load throughout. No answer may
claim a change of more than 5 %.

One warm server forks all trials, so a pair takes seconds. Each pair is written when it is done, and an
interrupted measurement continues after the last one. The records of stored pairs are kept and compared again
at each start, so the table shows what the present code decides.
"""

import sys
from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

from zbench.analysis.compare import Comparison, Settings, compare_runs
from zbench.analysis.measurement import OneByOne, PairedMeasurement, Plan
from zbench.analysis.noise import noise_of_history
from zbench.analysis.paired import Side
from zbench.analysis.trials import RunResults, Source
from zbench.bench import results
from zbench.bench.compare import SETTINGS
from zbench.bench.neighbour import neighbour
from zbench.bench.resumable import Kept
from zbench.bench.trials import smallest_trial, warm_runner
from zbench.launch.trial import TrialRunner
from zbench.record import lines
from zbench.record.environment import machine_facts
from zbench.record.record import Record

Kind = Literal["both", "base only", "head only", "paired"]
CLAIM = 0.05
REPEATS = 5
PLAN = (8, 12)
HISTORY = 30
"""Earlier runs that a stored comparison sees, at most."""


class Pairs:
    """The pairs measured so far, and what the present code says of each."""

    def __init__(self, kept: Kept) -> None:
        self._kept, self._facts = kept, machine_facts()
        self._runs: list[RunResults] = []
        self.findings = [self._judged(one) for one in kept.found]

    def of(self, kind: Kind) -> int:
        """Return how many pairs of a kind there are."""
        return sum(one["kind"] == kind for one in self.findings)

    def add(self, pair: dict[str, Any]) -> None:
        """Keep a pair, and decide."""
        self._kept.add(pair)
        self.findings.append(self._judged(pair))

    def _judged(self, pair: dict[str, Any]) -> dict[str, Any]:
        if "records" not in pair:
            return pair  # a paired comparison decides while it measures
        base, head = (
            RunResults.of(
                Source(name, run_ids=(f"{name} {len(self._runs)}",), facts=self._facts),
                [lines.decode(record, "a kept record") for record in pair["records"][name]],
            )
            for name in ("base", "head")
        )
        found = compare_runs(base, head, Settings(), noise_of_history(self._runs[-HISTORY:]))
        self._runs += [base, head]
        return finding(pair["kind"], found)


class Bench:
    """Measures pairs with a warm runner."""

    def __init__(self, runner: TrialRunner, pairs: Pairs) -> None:
        self._runner, self._pairs = runner, pairs

    def stored(self, kind: Kind) -> None:
        """Measure two runs of one code."""
        sides = {}
        for side in ("base", "head"):
            with neighbour(kind in ("both", f"{side} only")):
                repeats = [self._runner.run(smallest_trial(), repeat=i) for i in range(REPEATS)]
            sides[side] = [lines.jsonable(one) for one in repeats]
        self._pairs.add({"kind": kind, "records": sides})

    def paired(self) -> None:
        """Measure base and head side by side and keep what the comparison says."""
        repeat = count()

        def take(_: Side) -> list[Record]:
            return [self._runner.run(smallest_trial(), repeat=next(repeat))]

        plan = Plan(*PLAN, seed=self._pairs.of("paired"))
        with neighbour():
            found = PairedMeasurement(
                Source("base"), Source("head"), plan, SETTINGS, OneByOne(take), lambda _: None
            ).run()
        self._pairs.add(finding("paired", found))


def finding(kind: Kind, comparison: Comparison) -> dict[str, Any]:
    """Return what one comparison claims, and what its estimate alone would have said."""
    (row,) = comparison.rows
    time = row.step_time
    claimed = time is not None and (time.answer == "regression" or (time.faster and abs(time.change) > CLAIM))
    return {
        "kind": kind,
        "answer": row.answer,
        "faster": time is not None and time.faster,
        "change": 0.0 if time is None else time.change,
        "claimed": claimed,
        "exact_differs": [one.metric for one in row.exact if one.answer in ("regression", "lower", "higher")],
        "warnings": comparison.warnings,
        "exit_code": int(comparison.exit_code),
    }


NAMES: dict[Kind, str] = {
    "both": "stored, neighbour during both runs",
    "base only": "stored, neighbour during base only",
    "head only": "stored, neighbour during head only",
    "paired": f"paired, {PLAN[0]} to {PLAN[1]} blocks, neighbour throughout",
}


COLUMNS = (
    *("one code against itself", "pairs", "regressions", "faster or slower by more than 5 % claimed"),
    *("pass", "doubt", "largest apparent change", "pairs with warnings"),
)


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return what was found, as Markdown."""
    rows = []
    for kind, name in NAMES.items():
        chosen = [one for one in found if one["kind"] == kind]
        if not chosen:
            continue
        answers = [one["answer"] for one in chosen]
        doubt = sum(answer in ("suspected", "inconclusive") for answer in answers)
        cells = [name, len(chosen), answers.count("regression"), sum(one["claimed"] for one in chosen)]
        cells += [answers.count("pass"), doubt, f"{max((o['change'] for o in chosen), key=abs):+.0%}"]
        rows.append([*cells, sum(bool(o["warnings"]) for o in chosen)])
    differing = sum(bool(one["exact_differs"]) for one in found)
    differed = f"Pairs in which an exact figure differed: {differing} of {len(found)}."
    return f"{results.table(COLUMNS, rows)}\n\n{differed}"


def main() -> None:
    """Measure, write the table after each pair, and print it."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--pairs", type=int, default=60, help="stored pairs with the neighbour throughout")
    parser.add_argument("--one-sided", type=int, default=20, help="stored pairs for each side alone")
    parser.add_argument("--paired", type=int, default=60, help="paired comparisons")
    given = parser.parse_args()
    pairs = Pairs(Kept(given.out))
    wanted: dict[Kind, int] = {
        "both": given.pairs,
        "base only": given.one_sided,
        "head only": given.one_sided,
        "paired": given.paired,
    }
    with warm_runner() as runner:
        bench = Bench(runner, pairs)
        for kind, number in wanted.items():
            while pairs.of(kind) < number:
                bench.paired() if kind == "paired" else bench.stored(kind)
                print(f"{kind}: {pairs.findings[-1]}", file=sys.stderr, flush=True)
                results.write(given.out, table(pairs.findings), {"pairs": pairs.findings})
    results.write(given.out, table(pairs.findings), {"pairs": pairs.findings})
    print(table(pairs.findings))


if __name__ == "__main__":
    main()
