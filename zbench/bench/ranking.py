"""How often a sweep of six equal configurations names a best one.

    python -m zbench.bench.ranking [--sweeps N] [--repeats R] --out FILE

Each sweep measures the six in random order, round by round, as `zbench sweep` does, and ranks them
(`zbench.analysis.ranking`). The six are one configuration under six names. The findings are written after
each sweep, and an interrupted measurement continues after the last one; 100 sweeps of 3 repeats take about 25
minutes on a quiet machine. The table says how many repeats ran while the machine was loaded.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zbench.analysis.ranking import rank
from zbench.analysis.trials import disturbances
from zbench.bench import results
from zbench.bench.resumable import Kept
from zbench.bench.trials import smallest_trial, warm_runner
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.record.summary import summarize
from zbench.spec.sweep import ObjectiveSpec

EQUALS = 6
FASTEST = ObjectiveSpec(maximize=["tokens_per_s"])
BAR = 0.05


def one_sweep(runner: TrialRunner, repeats: int, number: int) -> list[Record]:
    """Return the records of one sweep; verdicts are set, because all six are one known configuration."""
    records, order = [], random.Random(number)
    for repeat in range(repeats):
        for name in order.sample(range(EQUALS), EQUALS):
            record = runner.run(smallest_trial(), repeat=repeat)
            judged = replace(record.correctness, verdict="identical")
            records.append(replace(record, trial_id=f"equal{name}", axes={"equal": name}, correctness=judged))
    return records


def finding(records: Sequence[Record]) -> dict[str, Any]:
    """Return what a sweep's ranking says, and by how much the apparent best leads."""
    summaries = summarize(records)
    ranking = rank(summaries, FASTEST)
    rates = sorted((s.number("tokens_per_s") or 0.0 for s in summaries), reverse=True)
    return {
        "best": ranking.best,
        "leaders": len(ranking.indistinguishable),
        "apparent_lead": rates[0] / rates[1] - 1,
        "spread": rates[0] / rates[-1] - 1,
        "disturbed": sum(bool(disturbances(record)) for record in records),
        "records": len(records),
    }


def table(found: Sequence[dict[str, Any]], repeats: int) -> str:
    """Return what was found, as Markdown."""
    named = sum(one["best"] is not None for one in found)
    largest = max((one["spread"] for one in found), default=0.0)
    disturbed = sum(one["disturbed"] for one in found)
    records = sum(one["records"] for one in found)
    sweeps = f"sweeps of {EQUALS} equal configurations, {repeats} repeats"
    counts = results.table(
        (sweeps, "a best was named", "bar"), [(len(found), named, f"{BAR * len(found):.0f}")]
    )
    return (
        f"{counts}\n\nThe apparently fastest was ahead of the slowest by up to {largest:.1%}. "
        f"{disturbed} of {records} repeats warn that the machine was disturbed."
    )


def main() -> None:
    """Measure, print the table, and keep what each sweep found."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--sweeps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    kept = Kept(given.out)
    with warm_runner() as runner:
        for number in range(len(kept.found), given.sweeps):
            kept.add(finding(one_sweep(runner, given.repeats, number)))
            print(f"sweep {number + 1}: {kept.found[-1]}", file=sys.stderr)
    text = table(kept.found, given.repeats)
    results.write(given.out, text, {"repeats": given.repeats, "sweeps": kept.found})
    print(text)


if __name__ == "__main__":
    main()
