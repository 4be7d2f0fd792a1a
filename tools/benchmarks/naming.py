"""Whether a sweep of six configurations names the one that is ahead, and what it says of equals.

    python -m tools.benchmarks.naming [--heats N] --out FILE

Heats of six configurations that compute the same are measured, without other work on the machine and with a
busy loop on every core, in turn; an interrupted measurement goes on. Then sweeps are drawn: a repeat is one
of the heats, its rows in random order, and one configuration is made faster by so many percent. Each sweep
is judged by the functions of `zbench sweep`. Whole sweeps would take days.
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from tools.benchmarks import results
from tools.benchmarks.trials import heat, neighbour, smallest_trial, warm_runner
from zbench.analysis.bounds import Bounds, bounds_of
from zbench.analysis.cells import Cell
from zbench.analysis.group_sequential import nominal_levels
from zbench.analysis.ranking import ALPHA, FIRST_LOOK
from zbench.analysis.ratios import fitted
from zbench.record.record import Record

ROWS = tuple("abcdef")
QUESTIONS = ((2, 0.0), (2, 0.1), (2, 0.2), (3, 0.0), (3, 0.05))
"""Repeats of a sweep, and by how much one of the six is faster."""

LEAD, MOST = 0.05, 20  # of a sweep with `run.separate`: what is to be found, and its most repeats
DRAWS, RACES = 300, 100
COLUMNS = (
    "load",
    "repeats",
    "one is faster by",
    "named",
    "another named",
    "others said to be behind",
    "bounds hold",
)
RACE_COLUMNS = ("load", f"{LEAD:.0%} ahead: named", "another named", "repeats (median)", "minutes (median)")


def measured(records: Sequence[Record], seconds: float, loaded: bool) -> dict[str, Any]:
    """Return a heat as it is kept: the seconds of each step by row and turn, and those of `alone` by turn."""
    heats = [record.heat for record in records if record.heat is not None]
    steps = [
        [turn.tolist() for turn in np.array_split(record.timing.step_seconds, len(record.heat.turn_seconds))]
        for record in records
        if record.timing is not None and record.heat is not None
    ]
    return {"loaded": loaded, "seconds": seconds, "steps": steps, "alone": heats[0].alone}


def drawn(
    chance: np.random.Generator, heats: Sequence[Mapping[str, Any]], repeats: int, lead: float
) -> list[Cell]:
    """Return the cells of a sweep in which the first row is faster than the others by `lead`, a fraction."""
    cells = []
    for repeat, number in enumerate(chance.choice(len(heats), repeats, replace=repeats > len(heats))):
        one = heats[number]
        for row, place in zip(ROWS, chance.permutation(len(ROWS)), strict=True):
            slower = math.log1p(lead) * (row != ROWS[0])
            turns = tuple(np.log(turn) + slower for turn in one["steps"][place])
            cells.append(Cell(row, str(repeat), str(repeat), turns))
        alone = tuple(np.log([seconds]) for seconds in one["alone"])
        cells.append(Cell("alone: ", str(repeat), str(repeat), alone))
    return cells


def judged(bounds: Bounds, lead: float) -> dict[str, float]:
    """Return what the bounds of a drawn sweep say: 1 for true, 0 for not."""
    alone = len(bounds.leaders) == 1
    truth = {row: math.log1p(lead) * (row != ROWS[0]) for row in ROWS}
    right = alone and lead > 0 and bounds.leaders[0] == ROWS[0]
    hold = all(bounds.at_least[row] <= truth[row] <= bounds.at_most[row] + 1e-12 for row in ROWS)
    behind = fmean(row not in bounds.leaders for row in ROWS[1:])
    return {"named": right, "another": alone and not right, "behind": behind, "hold": hold}


def race(chance: np.random.Generator, heats: Sequence[Mapping[str, Any]]) -> tuple[str | None, int, int]:
    """Return whom a sweep with `run.separate` names, after how many repeats, and how many trials it took."""
    looks = tuple(range(FIRST_LOOK, MOST + 1))
    levels = dict(zip(looks, nominal_levels(looks, ALPHA / 2), strict=True))
    left = list(ROWS)
    cells = list[Cell]()
    trials = 0
    whole = drawn(chance, heats, MOST, LEAD)
    for repeat in range(MOST):
        cells += [cell for cell in whole if cell.round == str(repeat) and cell.row in (*left, "alone: ")]
        trials += len(left)
        if repeat + 1 in levels:
            left = list(bounds_of(fitted(cells), ROWS, 2 * levels[repeat + 1]).leaders)
            if len(left) == 1:
                return left[0], repeat + 1, trials
    return None, MOST, trials


def tables(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return what was found, as Markdown."""
    rows = []
    races = []
    chance = np.random.default_rng(0)
    for loaded in (False, True):
        heats = [one for one in findings if one["loaded"] == loaded]
        load = "a busy loop on each core" if loaded else "none"
        for repeats, lead in QUESTIONS:
            said = defaultdict[str, float](float)
            for _ in range(DRAWS):
                bounds = bounds_of(fitted(drawn(chance, heats, repeats, lead)), ROWS, ALPHA)
                for name, value in judged(bounds, lead).items():
                    said[name] += value / DRAWS
            shares = [f"{said[name]:.1%}" for name in ("named", "another", "behind", "hold")]
            rows.append([load, repeats, f"{lead:.0%}", *(shares if lead else ["", shares[1], "", shares[3]])])
        ended = [race(chance, heats) for _ in range(RACES)]
        a_trial = fmean(one["seconds"] for one in heats) / len(ROWS) / 60
        named = [sum(name == ROWS[0] for name, *_ in ended), sum(name in ROWS[1:] for name, *_ in ended)]
        minutes = median(trials for *_, trials in ended) * a_trial
        races.append([load, *named, f"{median(count for _, count, _ in ended):g}", f"{minutes:.1f}"])
    return f"{results.table(COLUMNS, rows)}\n\n{results.table(RACE_COLUMNS, races)}"


def main() -> None:
    """Measure heats, write each when it has ended, and print what sweeps drawn from them say."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--heats", type=int, default=40, help="with other work, and as many without")
    given = parser.parse_args()
    findings = results.earlier(given.out, "findings")
    with warm_runner() as runner:
        equals = [smallest_trial(number) for number in range(len(ROWS))]
        for number in range(len(findings), 2 * given.heats):
            loaded = bool(number % 2)
            with neighbour(loaded):
                began = time.monotonic()
                records = heat(runner, equals, number)
                findings.append(measured(records, time.monotonic() - began, loaded))
            results.say({"heat": number + 1, "loaded": loaded, "seconds": findings[-1]["seconds"]})
            results.write(given.out, "measuring", {"findings": findings})
    text = tables(findings)
    results.write(given.out, text, {"findings": findings})
    print(text)


if __name__ == "__main__":
    main()
