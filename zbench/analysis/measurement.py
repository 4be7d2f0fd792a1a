"""A paired measurement from first sample to comparison; how a sample is taken is given from outside."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol

from zbench.analysis import compare, decision
from zbench.analysis.cells import Cell
from zbench.analysis.compare import Comparison
from zbench.analysis.decision import Decision
from zbench.analysis.evidence import of_blocks, of_runs
from zbench.analysis.group_sequential import nominal_levels
from zbench.analysis.paired import Blocks, Order, Side, base_at_either_end, block_cells, block_orders
from zbench.analysis.reasons import LEAST
from zbench.analysis.rows import match_trials
from zbench.analysis.settings import Settings
from zbench.analysis.trials import RunResults, Source
from zbench.errors import IncomparableError, OutOfTimeError, UsageError
from zbench.record.record import Record
from zbench.record.summary import summarize


class SampleSource(Protocol):
    """Samples in the order they are asked for (`zbench.launch.samples.KeptSamples`)."""

    def take(self, side: Side) -> Sequence[Record]:
        """Return the next sample: the records of the whole sweep, run once on one side."""

    def take_in_turns(self, first: Side, second: Side) -> tuple[Sequence[Record], Sequence[Record]] | None:
        """Return the next pair, whose timed steps alternate; None where that cannot be done."""

    def time_left(self, *samples: int) -> str:
        """Return in words how long so many more samples take, the least and the most; empty if not known."""

    def is_time_for(self, samples: int) -> bool:
        """Say whether so many more samples will end in time."""


Sample = Mapping[str, float]
"""Trial id (base's) -> mean step in seconds, of the trials that finished."""


Question = Callable[[Blocks, float, Mapping[str, Decision]], dict[str, Decision]]
"""What a measurement is to decide: takes all blocks so far, the level of this look, and the decisions of the
look before, of which what was decided stays. Returns the decisions by base's trial id.
"""


def within_margin(
    margin: float, blocks: Blocks, level: float, before: Mapping[str, Decision]
) -> dict[str, Decision]:
    """Decide a comparison's question, all configurations as one family: is head slower by more than `margin`?

    margin: a logarithm. See `Question` for the rest.
    """
    family = {name: (of_blocks(cells), margin) for name, cells in blocks.items()}
    return decision.decide(family, level, before)


_LOOK_EVERY = 4
"""Blocks from one look at the data to the next: each look costs the last one a little of its level."""

MOST_BLOCKS = 40
_BLOCK = 4
"""Samples of a block."""

_HARMLESS = math.log(1.25)
"""A machine whose speed moves by less than this from start to end is no problem: blocks cancel the drift."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a paired measurement goes on: from `least` blocks on until all is decided, at most `most`.

    No blocks at all: one sample a side, for what needs no clock.
    """

    least: int = 8
    most: int = 24
    seed: int = 0

    @property
    def exact_only(self) -> bool:
        """Say whether nothing is to be timed."""
        return self.most == 0

    def levels(self, alpha: float) -> dict[int, float]:
        """Return the level of each look by its number of blocks."""
        looks = tuple(sorted({*range(self.least, self.most, _LOOK_EVERY), self.most}))
        return dict(zip(looks, nominal_levels(looks, alpha), strict=True))


def check_plan(plan: Plan) -> None:
    """Raise UsageError for a plan that cannot answer: too few blocks, or too many."""
    if plan.most < plan.least:
        raise UsageError(f"--blocks: expected MIN:MAX with MIN at most MAX, got {plan.least}:{plan.most}")
    if not plan.exact_only and not LEAST <= plan.least <= plan.most <= MOST_BLOCKS:
        raise UsageError(
            f"--blocks: expected {LEAST} to {MOST_BLOCKS} blocks, or 0 for exact figures and verdicts only,"
            f" got {plan.least}:{plan.most}; fewer show too little of the noise"
        )


class PairedMeasurement:
    """Takes samples of base and head by a plan, and decides on all of them every few blocks."""

    def __init__(
        self,
        base: Source,
        head: Source,
        plan: Plan,
        settings: Settings,
        samples: SampleSource,
        tell: Callable[[str], None],
        question: Question | None = None,
    ) -> None:
        self._sources: dict[Side, Source] = {"base": base, "head": head}
        self._plan, self._settings, self._samples, self._tell = plan, settings, samples, tell
        self._question = question or partial(within_margin, settings.margin("step_time"))
        self._records: dict[Side, list[Record]] = {"base": [], "head": []}
        self._base_ids: dict[str, str] = {}
        self._blocks: dict[str, tuple[Cell, ...]] = {}
        self._repeat = count()
        self._stopped = ""

    def run(self) -> Comparison:
        """Measure and compare. IncomparableError where the sides have no configuration in common,
        OutOfTimeError where the time is over before the first block.
        """
        self._pair_up()
        if self._plan.exact_only:
            return self._comparison({})
        return self._comparison(self._measure(block_orders(self._plan.most, self._plan.seed)))

    def _pair_up(self) -> None:
        """Take one sample of each side, in no block, and learn which of head's trials is which of base's."""
        for side in ("base", "head"):
            self._keep(side, self._samples.take(side))
        base, head = (summarize(self._records[side]) for side in ("base", "head"))
        self._base_ids = {pair[1].trial_id: pair[0].trial_id for pair in match_trials(base, head).pairs}
        if not self._base_ids:
            names = " and ".join(self._sources[side].name for side in ("base", "head"))
            raise IncomparableError(f"{names} ran no configuration in common")
        self._blocks = dict.fromkeys(self._base_ids.values(), ())

    def _measure(self, orders: Sequence[Order]) -> dict[str, Decision]:
        """Take block after block until every comparison is decided."""
        least = self._plan.least
        levels = self._plan.levels(self._settings.alpha)
        decisions: dict[str, Decision] = {}
        planned = f"{least} to {len(orders)}" if least < len(orders) else f"{least}"
        for number, order in enumerate(orders, start=1):
            if not self._samples.is_time_for(_BLOCK):
                return self._stop(number - 1, planned, decisions)
            remaining = (_BLOCK * max(end - number + 1, 1) for end in (least, len(orders)))
            self._tell(f"block {number} of {planned}{self._samples.time_left(*remaining)}")
            self._add_block(number, order)
            if number in levels:
                decisions = self._look(levels[number], decisions)
                self._tell(f"after {number} blocks: {_progress(decisions)}")
                if all(one.is_decided for one in decisions.values()):
                    break
        return decisions

    def _look(self, level: float, before: Mapping[str, Decision]) -> dict[str, Decision]:
        return self._question({name: cells for name, cells in self._blocks.items() if cells}, level, before)

    def _stop(self, blocks: int, planned: str, before: Mapping[str, Decision]) -> dict[str, Decision]:
        """Return what may be said where the time is over: what was decided stays.

        This is no look of the plan, whose levels would not hold with it, so it decides nothing.
        """
        self._stopped = f"stopped at --max-time after {blocks} of {planned} blocks"
        if blocks == 0:
            raise OutOfTimeError(f"{self._stopped}; no step time can be compared yet")
        level = next(at for n, at in self._plan.levels(self._settings.alpha).items() if n >= blocks)
        decided = {name for name, one in before.items() if one.is_decided}
        return {
            name: one if name in decided else decision.doubted(one, self._stopped)
            for name, one in self._look(level, before).items()
        }

    def _add_block(self, number: int, order: Order) -> None:
        samples: list[Sample] = []
        for first, second in (order[:2], order[2:]):
            taken = self._samples.take_in_turns(first, second)
            records = taken or (self._samples.take(side) for side in (first, second))
            samples += [self._keep(*sample) for sample in zip((first, second), records, strict=True)]
        for name in self._blocks:
            if all(name in sample for sample in samples):
                seconds = [sample[name] for sample in samples]
                self._blocks[name] += block_cells(number, order, seconds)

    def _keep(self, side: Side, taken: Sequence[Record]) -> Sample:
        repeat = next(self._repeat)
        records = [replace(record, repeat=repeat) for record in taken]
        self._records[side] += records
        seconds: dict[str, list[float]] = {}
        for record in records:
            if record.outcome == "ok" and record.timing is not None:
                name = self._base_ids.get(record.trial_id, "") if side == "head" else record.trial_id
                seconds.setdefault(name, []).append(record.timing.mean_step_s)
        return {name: statistics.median(values) for name, values in seconds.items()}

    def _comparison(self, decisions: Mapping[str, Decision]) -> Comparison:
        """Judge all that was seen; a machine that moved takes every answer about time back.

        That is where base against itself, in the last quarter of the blocks against the first, moved by more
        than its noise explains, and by more than 25 %.
        """
        ends = [of_runs(*base_at_either_end(self._blocks[name]), 0.0).contrast for name in decisions]
        most = max(ends, key=lambda end: abs(end.value), default=None)
        drift = math.expm1(most.value) if most is not None else None
        level = self._settings.alpha / 2 / max(len(ends), 1)
        if any(abs(e.value) > _HARMLESS and min(e.p_above(0.0), (-e).p_above(0.0)) <= level for e in ends):
            why = f"the machine changed: base itself moved by {drift:+.0%} from the first blocks to the last"
            decisions = {name: decision.doubted(one, why) for name, one in decisions.items()}
        sides = [RunResults.of(self._sources[side], self._records[side]) for side in ("base", "head")]
        data = compare.PairedData(dict(self._blocks), drift, self._plan.exact_only, self._stopped)
        return compare.build(sides[0], sides[1], self._settings, decisions, paired=data)


def _progress(decisions: Mapping[str, Decision]) -> str:
    """Return what a look found: the one change, or how many of several are decided."""
    if len(decisions) != 1:
        return f"{sum(one.is_decided for one in decisions.values())} of {len(decisions)} decided"
    (only,) = decisions.values()
    return str(only)
