"""Whether `zbench bisect` finds a slower revision by real paired comparisons.

    python -m zbench.bench.bisect [--share S] [--revisions N] [--first K] [--blocks MIN:MAX] --out FILE

A list of revisions, of which each from the K-th on takes a share longer for every step
(`zbench.bench.slowed`). As in the command, the last one is compared with the good one first, by all blocks,
and each probe asks which of the two a revision is like. The search (`zbench.analysis.bisect`), its answers
and the rounds of a comparison are the command's own; only the samples come from two warm servers, so that a
comparison takes minutes. A larger share shows the search on a loaded machine. Each comparison is written
when it is done.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from zbench.analysis.bisect import SETTINGS, Fault, Finding, LikeGoodOrBad, bisect, judged, slowdown_of
from zbench.analysis.compare import Comparison
from zbench.analysis.measurement import OneByOne, PairedMeasurement, Plan, Question
from zbench.analysis.paired import Side
from zbench.analysis.trials import Source
from zbench.bench import results, slowed
from zbench.bench.compare import SLOWED, trials
from zbench.bench.resumable import Kept
from zbench.bench.trials import warm_runner
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec


def comparison(
    trial: TrialSpec, good: TrialRunner, other: TrialRunner, plan: Plan, question: Question | None = None
) -> Comparison:
    """Return the comparison of another revision with the good one."""
    repeat = count()

    def take(side: Side) -> list[Record]:
        runner = good if side == "base" else other
        return [runner.run(trial, repeat=next(repeat))]

    sides = Source("good"), Source("other")
    return PairedMeasurement(*sides, plan, SETTINGS, OneByOne(take), lambda _: None, question).run()


def figures(found: Comparison) -> dict[str, Any]:
    """Return what the table shows of a comparison."""
    (row,) = found.rows
    change = row.step_time.change if row.step_time is not None else None
    assert found.paired is not None
    blocks = max(map(len, found.paired.blocks.values()), default=0)
    return {"answer": row.answer, "change": change, "blocks": blocks}


def slowdown(kept: Kept, measure: Callable[[], Comparison]) -> Fault:
    """Return what is sought, as the last revision shows it, measured once. Exits where it shows nothing."""
    if not kept.of("bad"):
        found = measure()
        fault = slowdown_of(found)
        if fault is None:
            sys.exit(
                f"the slowed revision shows no slowdown ({figures(found)}); a quieter machine may show it"
            )
        kept.add({"kind": "bad", "revision": "last", **figures(found), "fault": fault.blocks})
    (bad,) = kept.of("bad")
    return Fault("regression", blocks={name: tuple(values) for name, values in bad["fault"].items()})


def table(found: Sequence[dict[str, Any]], wanted: int, named: Sequence[str]) -> str:
    """Return the probes and what they led to, as Markdown."""
    rows = [
        (one["revision"], one.get("finding", "what is sought"), f"{one['change']:+.1%}", one["blocks"])
        for one in found
    ]
    names = ", ".join(named) if named else "(not finished)"
    probes = results.table(("revision", "found", "change", "blocks"), rows)
    return f"{probes}\n\nNamed as the first slower revision: {names}. It is revision {wanted}."


def main() -> None:
    """Search, write each probe, and print the table."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--share", type=float, default=slowed.SHARE, help="how much longer a step takes")
    parser.add_argument("--revisions", type=int, default=32, help="revisions after the good one")
    parser.add_argument("--first", type=int, default=20, help="the first slower one")
    parser.add_argument("--blocks", type=int, nargs=2, default=(8, 24), metavar=("MIN", "MAX"))
    parser.add_argument("--steps", type=int, default=8, help="timed steps a process")
    given = parser.parse_args()
    os.environ[slowed.VARIABLE] = str(given.share)
    kept, plan = Kept(given.out), Plan(*given.blocks)
    (trial, *_) = trials(1, given.steps)
    revisions = [str(number) for number in range(given.revisions + 1)]
    known: dict[str, Finding] = {one["revision"]: one["finding"] for one in kept.of("probe")}
    with warm_runner() as good, warm_runner(targets=SLOWED) as slow:
        whole = replace(plan, least=plan.most)
        fault = slowdown(kept, lambda: comparison(trial, good, slow, whole))

        def probe(revision: str) -> Finding:
            seeded = replace(plan, seed=len(kept.found))
            other = slow if int(revision) >= given.first else good
            compared = comparison(trial, good, other, seeded, LikeGoodOrBad(fault.blocks))
            finding = judged(compared.rows, fault)
            kept.add({"kind": "probe", "revision": revision, "finding": finding, **figures(compared)})
            print(kept.found[-1], file=sys.stderr, flush=True)
            results.write(given.out, table(kept.found, given.first, ()), {"probes": kept.found})
            return finding

        found = bisect(revisions, probe, known)
    text = table(kept.found, given.first, found.candidates)
    document = {"share": given.share, "first": given.first, "named": found.candidates, "probes": kept.found}
    results.write(given.out, text, document)
    print(text)


if __name__ == "__main__":
    main()
