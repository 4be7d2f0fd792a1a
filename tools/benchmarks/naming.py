"""How long a sweep takes to name the fastest of six configurations, 5 % ahead: in turns and in rounds.

    python -m tools.benchmarks.naming [--rounds N] --out FILE

Repeats of one_faster.yaml are measured in turns and in rounds, without other work on the machine and with a
busy loop on every core, a few rounds of each in turn; an interrupted measurement goes on. Then sweeps are
drawn: each draws the noise of its rounds with replacement from those that were measured (what a configuration
was off its mean), looks after every round as `run.separate` does, drops who does not lead, and ends when it
names one. Whole sweeps would take days.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from tools.benchmarks import results
from tools.benchmarks.sweeps import ROOT, zbench
from tools.benchmarks.trials import neighbour
from zbench.analysis.group_sequential import constant_level
from zbench.analysis.multiple_comparisons import Comparisons
from zbench.analysis.ranking import ALPHA, FIRST_LOOK, cost_table
from zbench.record.store import load_records
from zbench.record.summary import first_goal, summarize
from zbench.spec.load import load_sweep

SWEEP = Path(__file__).with_name("one_faster.yaml")
LAYERS, LEAD = 19, math.log(1.05)  # of the fastest
ORDERS = ("turns", "rounds")
AT_ONCE = 3  # rounds of one order and load
MOST, DRAWS = 300, 100  # rounds of a drawn sweep, and sweeps of each order and load
COLUMNS = (
    "load", "order", "rounds measured", "seconds a round", "noise", "named", "another named",
    "rounds (median)", "minutes (median)",
)  # fmt: skip


def measure(runs: Path, order: str, loaded: bool, rounds: int) -> float:
    """Have so many rounds in the run of this order and load; return the seconds that it took."""
    begun = sorted(runs.glob("*/*/trials.jsonl"))
    sets = [f"run.order={order}", "run.separate=null"]
    new = [str(SWEEP), *(word for setting in sets for word in ("--set", setting))]
    what = ["--resume", str(begun[-1].parent)] if begun else new
    with neighbour(loaded):
        began = time.monotonic()
        zbench("sweep", *what, "--repeats", str(rounds), "-q", "-o", str(runs), cwd=ROOT)
        return time.monotonic() - began


def costs(run: Path) -> dict[str, Any]:
    """Return the logarithms that a ranking compares, [configurations, rounds], and the row of the fastest."""
    summaries = summarize(load_records(run))
    goal = first_goal(summaries, load_sweep(SWEEP).objective)
    layers = [s.config["workload"]["options"]["layers"] for s in summaries]
    return {"costs": cost_table(summaries, goal), "fastest": layers.index(LAYERS)}


def drawn(cells: "np.ndarray[Any, Any]", chance: random.Random) -> tuple[int | None, list[int]]:
    """Return which row a drawn sweep names, if any, and how many configurations took part in each round."""
    level = constant_level(FIRST_LOOK, MOST, ALPHA)
    table, leaders, took_part = np.full((len(cells), MOST), np.nan), np.arange(len(cells)), []
    for number in range(MOST):
        table[leaders, number] = cells[leaders, chance.randrange(cells.shape[1])]
        took_part.append(len(leaders))
        if number + 1 >= FIRST_LOOK:
            leaders = Comparisons(table[:, : number + 1].tolist(), level).leaders
            if len(leaders) == 1:
                return int(leaders[0]), took_part
    return None, took_part


def noise_of(finding: dict[str, Any]) -> "np.ndarray[Any, Any]":
    """Return what each configuration was off its mean in each round, beside the others; unbiased."""
    cells: np.ndarray[Any, Any] = np.array(finding["costs"])
    cells -= cells.mean(axis=0)
    rows, rounds = cells.shape
    share = (1 - 1 / rows) * (1 - 1 / rounds)  # of the variance, which is left of it
    cells -= cells.mean(axis=1, keepdims=True)
    return cells / math.sqrt(share)


def summary(finding: dict[str, Any]) -> dict[str, Any]:
    """Return what the sweeps drawn from one order and load have named, and when."""
    cells, chance = noise_of(finding), random.Random(0)
    deviation = math.sqrt(np.square(cells).mean())
    cells[finding["fastest"]] -= LEAD
    sweeps = [drawn(cells, chance) for _ in range(DRAWS)]
    named = Counter(row == finding["fastest"] for row, _ in sweeps if row is not None)
    a_round = fmean(finding["seconds"]) / AT_ONCE
    return {
        "rounds_measured": cells.shape[1], "seconds_a_round": a_round, "noise": deviation,
        "named": named[True] / DRAWS, "another": named[False] / DRAWS,
        "rounds": median(len(took_part) for _, took_part in sweeps),
        "minutes": median(sum(took_part) for _, took_part in sweeps) * a_round / len(cells) / 60,
    }  # fmt: skip


def table(findings: Sequence[dict[str, Any]]) -> str:
    """Return what was found, as Markdown."""
    rows, minutes = [], {}
    for finding in findings:
        load = "a busy loop on each core" if finding["loaded"] else "none"
        said = summary(finding)
        minutes[finding["order"], finding["loaded"]] = said["minutes"]
        shares = [f"{said[key]:.1%}" for key in ("noise", "named", "another")]
        cells = [f"{said['seconds_a_round']:.0f}", *shares, f"{said['rounds']:g}", f"{said['minutes']:.0f}"]
        rows.append([load, finding["order"], said["rounds_measured"], *cells])
    ratios = [
        f"{minutes['turns', loaded] / minutes['rounds', loaded]:.2f} with{'' if loaded else 'out'} other work"
        for loaded in (False, True)
        if {("turns", loaded), ("rounds", loaded)} <= minutes.keys()
    ]
    return f"{results.table(COLUMNS, rows)}\n\nTurns over rounds: {', '.join(ratios)}."


def main() -> None:
    """Measure in turns and in rounds, write what was found after each part, and print the table."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--rounds", type=int, default=18, help="of each order, with and without other work")
    given = parser.parse_args()
    findings = results.earlier(given.out, "findings")
    for rounds in range(AT_ONCE, given.rounds + 1, AT_ONCE):
        for loaded, order in product((False, True), ORDERS):
            known = [one for one in findings if (one["order"], one["loaded"]) == (order, loaded)]
            one: dict[str, Any] = known[0] if known else {"order": order, "loaded": loaded, "seconds": []}
            if known and len(one["costs"][0]) >= rounds:
                continue
            runs = given.out.with_name(f"{given.out.name}-{order}-{'loaded' if loaded else 'quiet'}")
            seconds = measure(runs.resolve(), order, loaded, rounds)
            (run,) = runs.glob("*/*/trials.jsonl")
            one.update(costs(run.parent))
            if known:  # the first part computes references, too
                one["seconds"].append(seconds)
            else:
                findings.append(one)
            results.say({"order": order, "loaded": loaded, "rounds": rounds, "seconds": round(seconds)})
            results.write(given.out, "measuring", {"findings": findings})
    text = table(findings)
    results.write(given.out, text, {"findings": findings})
    print(text)


if __name__ == "__main__":
    main()
