"""How long a sweep takes to name the fastest of six configurations, 5 % ahead: in turns and in rounds.

    python -m tools.benchmarks.naming [--sweeps N] --out FILE

Each is a `zbench sweep` of one_faster.yaml with `run.separate`, timed from its start to its end, alternately
in turns and in rounds; without other work on the machine, and with a busy loop on every core. A sweep that
names nothing within `run.max_repeats` counts with its time, which is then less than it would take. Each
finding is written when it is made, and an interrupted measurement goes on after the last one.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tools.benchmarks import results
from tools.benchmarks.sweeps import ROOT, zbench
from tools.benchmarks.trials import neighbour

SWEEP = Path(__file__).with_name("one_faster.yaml")
LAYERS = 19  # of the fastest
COLUMNS = ("load", "order", "sweeps", "named", "another named", "seconds (median)", "rounds (median)")


def measured(order: str, loaded: bool) -> dict[str, Any]:
    """Return what one sweep names, and after how many seconds and rounds."""
    words = ["sweep", str(SWEEP), "--set", f"run.order={order}", "--json", "-q"]
    with neighbour(loaded), tempfile.TemporaryDirectory(prefix="zbench-naming-") as runs:
        began = time.monotonic()
        done = zbench(*words, "-o", runs, cwd=ROOT, capture=True)
        seconds = time.monotonic() - began
    document = json.loads(done.stdout)
    trials, best = document["trials"], document["best"]
    fastest = {one["trial_id"] for one in trials if one["config"]["workload"]["options"]["layers"] == LAYERS}
    named = "nothing" if best is None else "fastest" if best in fastest else "another"
    return {
        "order": order, "loaded": loaded, "named": named, "seconds": seconds,
        "rounds": 1 + max(one["repeat"] for one in trials),
    }  # fmt: skip


def table(findings: Sequence[dict[str, Any]]) -> str:
    """Return what was found, as Markdown."""
    rows, typical = [], {}
    for loaded in (False, True):
        for order in ("rounds", "turns"):
            chosen = [one for one in findings if (one["order"], one["loaded"]) == (order, loaded)]
            if chosen:
                counts = [sum(one["named"] == what for one in chosen) for what in ("fastest", "another")]
                typical[order, loaded] = median(one["seconds"] for one in chosen)
                rounds = f"{median(one['rounds'] for one in chosen):g}"
                load = "a busy loop on each core" if loaded else "none"
                rows.append([load, order, len(chosen), *counts, f"{typical[order, loaded]:.0f}", rounds])
    ratios = [
        f"{typical['turns', loaded] / typical['rounds', loaded]:.2f} with{'' if loaded else 'out'} other work"
        for loaded in (False, True)
        if {("turns", loaded), ("rounds", loaded)} <= typical.keys()
    ]
    return f"{results.table(COLUMNS, rows)}\n\nTurns over rounds: {', '.join(ratios)}."


def main() -> None:
    """Measure in turns and in rounds, write the table after each sweep, and print it."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--sweeps", type=int, default=10, help="of each order, with and without other work")
    given = parser.parse_args()
    findings = results.earlier(given.out, "findings")
    for number, loaded, order in itertools.product(range(given.sweeps), (True, False), ("turns", "rounds")):
        known = [one for one in findings if (one["order"], one["loaded"]) == (order, loaded)]
        if len(known) <= number:
            findings.append(measured(order, loaded))
            results.say(findings[-1])
            results.write(given.out, table(findings), {"findings": findings})
    print(table(findings))


if __name__ == "__main__":
    main()
