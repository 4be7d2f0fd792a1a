"""Simulated error rates and power of every comparison of zbench: results/benchmarks/error_rates.md.

    python -m tools.benchmarks.error_rates [--draws N] [--out FILE]

The decisions are those of the commands themselves (`zbench.analysis.decision`); step times alone are drawn.
A false answer is `regression` or "faster" for equal versions, `regression` or `pass` for a change of exactly
the margin (each errs at the nominal rate there, by construction), and `pass` for a larger one.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.benchmarks import results
from zbench.analysis import decision
from zbench.analysis.bounds import bounds_of
from zbench.analysis.cells import Cell
from zbench.analysis.decision import Decision
from zbench.analysis.evidence import RESIDUAL, of_blocks, of_runs, over_part
from zbench.analysis.measurement import Plan
from zbench.analysis.paired import BASE_FIRST, HEAD_FIRST, block_cells
from zbench.analysis.ranking import ALPHA as RANKING_ALPHA
from zbench.analysis.ratios import fitted
from zbench.analysis.trials import PLAIN
from zbench.launch.sweep import shuffled

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, float, int], Floats]
ALPHA = 0.01
STORED_MARGIN, PAIRED_MARGIN = 0.05, 0.02
NOISES = (0.003, 0.02, 0.05)
BETWEEN_PAIRS = 0.05
"""How far one pair of samples lies from the next, where they are taken in turns."""

REPEATS = (3, 5, 7)
PARTS = {"compute": 0.01, "memory": 0.005, "meeting": 0.02}
"""Repeats of runs beside a yardstick; the noise of each of its parts where a neighbour is beside one run."""
OWN_SHARE = math.sqrt(1 / 17)
"""Share of a quotient's noise that is the yardstick's: a quarter of the step time's."""
MISSED = math.sqrt(2) * RESIDUAL
ALWAYS = math.log1p(0.02)
"""What the yardstick misses of how far two runs lie apart: its standard deviation; the same in every pair."""

RANKED = ("equals", "two noisy ahead of 18", "in two heats", "10 % of drift")
RANKED_REPEATS = (2, 3, 5, 7)

PLAN = Plan(8, 16)


def normal(rng: np.random.Generator, noise: float, count: int) -> Floats:
    """Return independent normal deviations."""
    return rng.normal(0, noise, count)


def bimodal(rng: np.random.Generator, noise: float, count: int) -> Floats:
    """Return deviations of which a fifth lies in a mode three standard deviations slower."""
    return rng.normal(0, noise / 3, count) + 3 * noise * (rng.random(count) < 0.2)


def drifting(rng: np.random.Generator, noise: float, count: int) -> Floats:
    """Return deviations about a level that wanders: AR(1) with 0.95 of the sample before."""
    steps = rng.normal(0, noise * math.sqrt(1 - 0.95**2), count)
    steps[0] = rng.normal(0, noise)
    level = np.array(list(itertools.accumulate(steps, lambda before, step: 0.95 * before + step)))
    return np.asarray(level + rng.normal(0, noise / 4, count))


KINDS: dict[str, Draw] = {"normal": normal, "bimodal": bimodal, "drift": drifting}


@dataclass(frozen=True, slots=True)
class RateCell:
    """One setting and how often each answer was given."""

    kind: str
    effect: float
    noise: float
    n: int
    between: float
    answers: Counter[str]

    def false(self, margin: float) -> int:
        """Return the larger count of false answers in one direction."""
        a = self.answers
        if self.effect == 0:
            return max(a["regression"], a["faster"])
        at_margin = math.isclose(self.effect, margin)
        return max(a["regression"], a["pass"] + a["faster"]) if at_margin else a["pass"] + a["faster"]

    def right(self) -> int:
        """Return how often the true answer was given: a pass of equals, a regression of slower heads."""
        return (
            self.answers["pass"] + self.answers["faster"] if self.effect == 0 else self.answers["regression"]
        )


def label(found: Decision) -> str:
    """Return the answer, with "faster" as one of its own."""
    return "faster" if found.faster else found.answer


def over_yardstick(
    rng: np.random.Generator, kind: str, effect: float, noise: float, n: int, between: float
) -> str:
    """Return the answer for two stored runs beside a yardstick, a neighbour beside one of them or none.

    noise: of a quotient. between: what the yardstick does not show of how far the runs lie apart, `MISSED` or
    `ALWAYS`; 0 on a quiet machine.
    """
    base, head = KINDS[kind](rng, noise * math.sqrt(1 - OWN_SHARE**2), 2 * n).reshape(2, n)
    head += math.log1p(effect) + (rng.normal(0, between) if between == MISSED else between)
    loaded = rng.integers(2)
    plain = of_runs(base.tolist(), head.tolist())
    family = {PLAIN: {"x": (plain, math.log1p(STORED_MARGIN))}}  # as if no load slowed it: it objects least
    for part, beside in PARTS.items():
        own = rng.normal(0, noise * OWN_SHARE, (2, n))
        own[loaded] += rng.normal(0, beside, n) * (between == MISSED)
        evidence = over_part((base.tolist(), head.tolist()), own.tolist())
        family[part] = {"x": (evidence, math.log1p(STORED_MARGIN))}
    return label(decision.decide_over(family, ALPHA)["x"])


def ranked(rng: np.random.Generator, kind: str, setting: str, noise: float, n: int) -> str:
    """Return whether a ranking of equals names a best."""
    count = {"two noisy ahead of 18": 20, "10 % of drift": 2}.get(setting, 6)
    table = KINDS[kind](rng, noise, count * n).reshape(count, n) + rng.normal(0, 0.1, n)
    if setting == "two noisy ahead of 18":
        table[2:] = 0.3 + rng.normal(0, noise / 20, (18, n))
    if setting == "in two heats":
        table += np.repeat(rng.normal(0, noise, (2, n)), 3, axis=0)  # the noise of the `alone` of each heat
    if setting == "10 % of drift":
        seed = int(rng.integers(2**32))
        for number in range(n):
            order = shuffled(range(count), seed=seed, round_number=number)
            table[order, number] += 0.1 * (number + np.arange(count) / count) / n
    cells = [
        Cell(str(row), str(number), str(number), (np.array([value]),))
        for row, values in enumerate(table)
        for number, value in enumerate(values)
    ]
    bounds = bounds_of(fitted(cells), list(map(str, range(count))), RANKING_ALPHA)
    return "best" if len(bounds.leaders) == 1 else "none"


def paired(rng: np.random.Generator, kind: str, effect: float, noise: float, *, in_turns: bool) -> str:
    """Return the answer of a paired measurement of 8 to 16 blocks, stopped as the command stops.

    in_turns: the samples of a pair alternate, so what moves from pair to pair is alike for both.
    """
    samples = KINDS[kind](rng, noise, 4 * PLAN.most).reshape(PLAN.most, 4)
    if in_turns:
        samples += np.repeat(rng.normal(0, BETWEEN_PAIRS, (PLAN.most, 2)), 2, axis=1)
    cells = list[Cell]()
    for number, logs in enumerate(samples.tolist()):
        order = HEAD_FIRST if rng.random() < 0.5 else BASE_FIRST
        slower = [1 + effect if side == "head" else 1.0 for side in order]
        seconds = [math.exp(log) * factor for log, factor in zip(logs, slower, strict=True)]
        cells += block_cells(number, order, seconds)
    found: dict[str, Decision] = {}
    for n, levels in PLAN.levels(ALPHA).items():
        found = decision.decide({"x": (of_blocks(cells[: 4 * n]), math.log1p(PAIRED_MARGIN))}, levels, found)
        if found["x"].is_decided:
            break
    return label(found["x"])


def over_yardstick_cells(draws: int, rng: np.random.Generator) -> list[RateCell]:
    """Return every cell of the stored comparison beside a yardstick."""
    effects, between = (0.0, 0.05, 0.08, 0.1, 0.25), (0.0, MISSED, ALWAYS)
    settings = itertools.product(("normal", "bimodal"), effects, NOISES, REPEATS, between)
    return [RateCell(*s, Counter(over_yardstick(rng, *s) for _ in range(draws))) for s in settings]


def ranking_table(draws: int, rng: np.random.Generator) -> str:
    """Return in how many rankings of equals a best is named, by setting: worst of all cells, and the mean."""
    rows = []
    for setting in RANKED:
        cells = itertools.product(("normal", "bimodal"), (setting,), NOISES, RANKED_REPEATS)
        counts = [sum(ranked(rng, *cell) == "best" for _ in range(draws)) for cell in cells]
        mean = sum(counts) / len(counts) / draws
        rows.append([setting, len(counts), f"{max(counts)} of {draws}", f"{mean:.2%}"])
    return results.table(("equals", "cells", "worst cell", "mean"), rows)


def paired_cells(draws: int, rng: np.random.Generator, *, in_turns: bool = False) -> list[RateCell]:
    """Return every cell of the paired comparison."""
    cells = []
    for kind, effect, noise in itertools.product(KINDS, (0.0, PAIRED_MARGIN, 0.05, 0.08, 9.0), NOISES):
        answers = Counter(paired(rng, kind, effect, noise, in_turns=in_turns) for _ in range(draws))
        cells.append(RateCell(kind, effect, noise, PLAN.most, 0.0, answers))
    return cells


def false_table(cells: Sequence[RateCell], margin: float, draws: int) -> str:
    """Return false answers by effect: the worst cell, and the mean over cells."""
    rows = []
    for effect in dict.fromkeys(cell.effect for cell in cells):
        counts = [cell.false(margin) for cell in cells if cell.effect == effect]
        note = " (the margin)" if math.isclose(effect, margin) else ""
        mean = sum(counts) / len(counts) / draws
        rows.append([f"{effect:+.0%}{note}", len(counts), f"{max(counts)} of {draws}", f"{mean:.2%}"])
    return results.table(("true change", "cells", "worst cell", "mean"), rows)


def power_table(cells: Sequence[RateCell], draws: int, columns: Sequence[int]) -> str:
    """Return the share of true answers by effect, noise and n, with normal noise and none between runs."""
    rows = []
    chosen = {(c.effect, c.noise, c.n): c for c in cells if c.kind == "normal" and c.between == 0}
    for effect, noise in dict.fromkeys((e, s) for e, s, _ in chosen):
        shares = (f"{chosen[effect, noise, n].right() / draws:.0%}" for n in columns)
        rows.append([f"{effect:+.0%}", f"{noise:.1%}", *shares])
    return results.table(("true change", "noise", *(f"n = {n}" for n in columns)), rows)


def main() -> None:
    """Draw, decide, and print the tables."""
    parser = results.parser(__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="draws of each cell")
    given = parser.parse_args()
    rng = np.random.default_rng(14)
    by_pairs, by_turns = (paired_cells(given.draws, rng, in_turns=in_turns) for in_turns in (False, True))
    by_yardstick = over_yardstick_cells(given.draws, np.random.default_rng(15))
    text = "\n\n".join(
        [
            f"### Paired: margin {PAIRED_MARGIN:.0%}, 8 to 16 blocks; false answers",
            false_table(by_pairs, PAIRED_MARGIN, given.draws),
            "### Paired: true answers (power), normal noise",
            power_table(by_pairs, given.draws, [PLAN.most]),
            f"### Paired, in turns: {BETWEEN_PAIRS:.0%} from pair to pair; false answers",
            false_table(by_turns, PAIRED_MARGIN, given.draws),
            "### Paired, in turns: true answers (power), normal noise",
            power_table(by_turns, given.draws, [PLAN.most]),
            f"### Stored, over the machine's yardstick: margin {STORED_MARGIN:.0%}; false answers",
            false_table([c for c in by_yardstick if c.between != ALWAYS], STORED_MARGIN, given.draws),
            "### The same where every head seems 2 % slower than it is; false answers",
            false_table([c for c in by_yardstick if c.between == ALWAYS], STORED_MARGIN, given.draws),
            "### Stored, over the machine's yardstick: true answers (power), normal noise",
            power_table(by_yardstick, given.draws, REPEATS),
            "### Ranking: a best among equals",
            ranking_table(given.draws, rng),
        ]
    )
    results.write(given.out, text, {"draws": given.draws})
    print(text)


if __name__ == "__main__":
    main()
