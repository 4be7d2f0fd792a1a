"""One version measured as if it were two, with other work on every core and without: what is claimed.

    python -m tools.benchmarks.false_claims [--quiet N] [--one-sided N] --out FILE

Two stored runs of 7 repeats beside the machine's yardstick are compared as `zbench compare` compares them:
on a quiet machine, or with load during one of the runs, which makes the other seem much faster. No
comparison may claim a change of more than 5 %. Each pair is compared once more with head's times made
longer: how many of those are called a regression. `zbench doctor --aa` compares paired runs, and
`tools.benchmarks.naming` says what is claimed of equals within a sweep.

One warm server forks all trials, so a pair takes seconds. Each finding is written when it is made, and an
interrupted measurement goes on after the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import stdev
from typing import Any

from tools.benchmarks import results
from tools.benchmarks.trials import heat, neighbour, steadier_trial, warm_runner
from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.settings import Settings
from zbench.analysis.trials import RunResults, Source
from zbench.launch.trial import TrialRunner
from zbench.record.environment import machine_facts
from zbench.record.record import Record

CLAIM, STEADY, STORED_REPEATS = 0.05, 0.02, 7
SLOWER = {1.1: 7, 1.25: 5, 2.0: 5}
"""By how much head is made slower, and by how many repeats of each side that is judged."""

NAMES = {
    "quiet": "two stored runs, no load",
    "base only": "two stored runs, load during base only",
    "head only": "two stored runs, load during head only",
}
COLUMNS = (
    "one version against itself", "measured", "false claims", "largest change", "with warnings", "pass",
    *(f"{factor - 1:.0%} slower, {repeats} repeats: called" for factor, repeats in SLOWER.items()),
)  # fmt: skip


def stored(runner: TrialRunner, kind: str) -> dict[str, Any]:
    """Return what a comparison of two runs of one version says, and what it would if head were slower."""
    runs = []
    trial = steadier_trial()
    for side in ("base", "head"):
        with neighbour(kind == f"{side} only"):
            runs.append(
                [record for repeat in range(STORED_REPEATS) for record in heat(runner, [trial], repeat)]
            )
    base, head = runs
    slower = {
        f"{factor:g}": answer(compared(base[:n], [slowed(record, factor) for record in head[:n]]))
        for factor, n in SLOWER.items()
    }
    return comparison_finding(kind, compared(base, head), slower) | {"spread": max(map(spread, runs))}


def spread(records: Sequence[Record]) -> float:
    """Return the standard deviation of the repeats' log times."""
    return stdev(log(record.timing.mean_step_s) for record in records if record.timing is not None)


def compared(base: Sequence[Record], head: Sequence[Record]) -> Comparison:
    """Return the comparison of two stored runs on this machine."""
    sides = [Source(side, run_ids=(side,), facts=machine_facts()) for side in ("base", "head")]
    return compare_runs(RunResults.of(sides[0], base), RunResults.of(sides[1], head), Settings())


def slowed(record: Record, factor: float) -> Record:
    """Return a record whose configuration took longer by `factor` while the yardstick did not."""
    timing, own = record.timing, record.heat
    if timing is None or own is None:
        return record
    steps = [factor * seconds for seconds in timing.step_seconds]
    timing = replace(timing, step_seconds=steps, median_step_s=factor * timing.median_step_s)
    turns = [factor * seconds for seconds in own.turn_seconds]
    return replace(record, timing=timing, heat=replace(own, turn_seconds=turns))


def answer(comparison: Comparison) -> str:
    """Return what a comparison says of the step time; `faster` where it claims more than 5 %."""
    time = comparison.rows[0].step_time
    if time is None:
        return str(comparison.rows[0].answer)
    return "faster" if time.faster and abs(time.change) > CLAIM else str(time.answer)


def comparison_finding(kind: str, comparison: Comparison, slower: Mapping[str, str]) -> dict[str, Any]:
    """Return what one comparison claims, what its estimate alone would have said, and what was answered of a
    slower head. A slower head that is called faster is a false claim, too.
    """
    time = comparison.rows[0].step_time
    said = answer(comparison)
    return {
        "kind": kind,
        "claimed": said in ("regression", "faster") or "faster" in slower.values(),
        "change": 0.0 if time is None else time.change,
        "answer": said,
        "slower": dict(slower),
        "warnings": len(comparison.warnings),
    }


def table(findings: Sequence[dict[str, Any]]) -> str:
    """Return what was found, as Markdown."""
    rows = []
    groups = {name: [one for one in findings if one["kind"] == kind] for kind, name in NAMES.items()}
    steady = [one for one in groups[NAMES["quiet"]] if one.get("spread", 1.0) <= STEADY]
    for name, chosen in [*groups.items(), (f"those whose own deviation is at most {STEADY:.0%}", steady)]:
        if chosen:
            claims, warned = (sum(bool(one[key]) for one in chosen) for key in ("claimed", "warnings"))
            largest = max((one["change"] for one in chosen), key=abs)
            passed = [one["answer"] == "pass" for one in chosen if "answer" in one]
            called = [
                [one["slower"][f"{f:g}"] == "regression" for one in chosen if "slower" in one] for f in SLOWER
            ]
            answers = [sum(some) if some else "" for some in (passed, *called)]
            rows.append([name, len(chosen), claims, f"{largest:+.0%}", warned, *answers])
    return results.table(COLUMNS, rows)


def main() -> None:
    """Measure, write the table after each finding, and print it."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--quiet", type=int, default=20, help="stored pairs without load")
    parser.add_argument("--one-sided", type=int, default=30, help="stored pairs for each side alone")
    given = parser.parse_args()
    wanted = dict(zip(NAMES, (given.quiet, *2 * [given.one_sided]), strict=True))
    findings = results.earlier(given.out, "findings")
    with warm_runner() as runner:
        for kind, number in wanted.items():
            for _ in range(sum(one["kind"] == kind for one in findings), number):
                findings.append(stored(runner, kind))
                results.say(findings[-1])
                results.write(given.out, table(findings), {"findings": findings})
    print(table(findings))


if __name__ == "__main__":
    main()
