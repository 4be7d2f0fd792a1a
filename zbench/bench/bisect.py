"""Whether `zbench bisect` finds a slower revision by real paired comparisons.

    python -m zbench.bench.bisect [--share S] [--revisions N] [--first K] [--blocks MIN:MAX] --out FILE

A list of revisions, of which each from the K-th on takes a share longer for every step
(`zbench.bench.slowed`). The search (`zbench.analysis.bisect`), its answers and the rounds of a comparison are
the command's own; only the samples come from two warm servers, so that a comparison takes minutes. 5 % needs
a quiet machine; a larger share shows the search on a loaded one. Each probe is written when it is done.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from zbench.analysis.bisect import Fault, Finding, bisect, judged
from zbench.analysis.measurement import PairedMeasurement, Plan
from zbench.analysis.paired import Side
from zbench.analysis.trials import Source
from zbench.bench import results, slowed
from zbench.bench.compare import SETTINGS, SLOWED, trials
from zbench.bench.resumable import Kept
from zbench.launch.trial import TrialRunner, local_runner
from zbench.record.record import Record


def comparison(good: TrialRunner, candidate: TrialRunner, plan: Plan) -> dict[str, Any]:
    """Return what comparing a candidate with the good revision says."""
    (trial, *_), repeat = trials(1, 8), count()

    def take(side: Side) -> list[Record]:
        runner = good if side == "base" else candidate
        return [runner.run(trial, repeat=next(repeat))]

    found = PairedMeasurement(Source("good"), Source("candidate"), plan, SETTINGS, take, lambda _: None).run()
    (row,) = found.rows
    change = row.step_time.change if row.step_time is not None else None
    assert found.paired is not None
    blocks = max(map(len, found.paired.blocks.values()), default=0)
    finding = judged(found.rows, Fault("regression"))
    return {"finding": finding, "answer": row.answer, "change": change, "blocks": blocks}


def table(found: Sequence[dict[str, Any]], wanted: int, named: Sequence[str]) -> str:
    """Return the probes and what they led to, as Markdown."""
    rows = ["| revision | answer | change | blocks |", "|---|---|---|---|"]
    for one in found:
        rows.append(f"| {one['revision']} | {one['answer']} | {one['change']:+.1%} | {one['blocks']} |")
    said = ", ".join(named) if named else "(not finished)"
    return "\n".join([*rows, "", f"Named as the first slower revision: {said}. It is revision {wanted}."])


def main() -> None:
    """Search, write each probe, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=slowed.SHARE, help="how much longer a step takes")
    parser.add_argument("--revisions", type=int, default=32, help="revisions after the good one")
    parser.add_argument("--first", type=int, default=20, help="the first slower one")
    parser.add_argument("--blocks", type=int, nargs=2, default=(8, 24), metavar=("MIN", "MAX"))
    parser.add_argument("--out", type=Path, required=True, help="file to write, without its ending")
    given = parser.parse_args()
    os.environ[slowed.VARIABLE] = str(given.share)
    kept, plan = Kept(given.out), Plan(*given.blocks)
    revisions = [str(number) for number in range(given.revisions + 1)]
    known: dict[str, Finding] = {one["revision"]: one["finding"] for one in kept.found}
    with tempfile.TemporaryDirectory(prefix="zbench-bisect-") as name:
        scratch = Path(name)
        with (
            local_runner(scratch, scratch, rerun_disturbed=False) as good,
            local_runner(scratch, scratch, targets=SLOWED, rerun_disturbed=False) as slow,
        ):
            for runner in (good, slow):
                runner.wait_until_ready()

            def probe(revision: str) -> Finding:
                seeded = replace(plan, seed=len(kept.found))
                said = comparison(good, slow if int(revision) >= given.first else good, seeded)
                kept.add({"kind": "probe", "revision": revision, **said})
                print(kept.found[-1], file=sys.stderr, flush=True)
                results.write(given.out, table(kept.found, given.first, ()), {"probes": kept.found})
                finding: Finding = said["finding"]
                return finding

            found = bisect(revisions, probe, known)
    text = table(kept.found, given.first, found.candidates)
    document = {"share": given.share, "first": given.first, "named": found.candidates, "probes": kept.found}
    results.write(given.out, text, document)
    print(text)


if __name__ == "__main__":
    main()
