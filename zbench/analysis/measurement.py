"""A paired measurement from first sample to comparison; how a sample is taken is given from outside."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol

from zbench.analysis import compare, decision, paired
from zbench.analysis.compare import Comparison
from zbench.analysis.decision import Decision
from zbench.analysis.evidence import Paired
from zbench.analysis.group_sequential import nominal_levels
from zbench.analysis.paired import Blocks, Order, Side
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

    def last(self, side: Side) -> Sequence[Record]:
        """Return a sample of the end, which comes later where a measurement goes on."""

    def take_in_turns(self, first: Side, second: Side) -> tuple[Sequence[Record], Sequence[Record]] | None:
        """Return the next pair, whose timed steps alternate; None where that cannot be done."""

    def time_left(self, *samples: int) -> str:
        """Return in words how long so many more samples take, the least and the most; empty if not known."""

    def is_time_for(self, samples: int) -> bool:
        """Say whether so many more samples will end in time."""


Sample = Mapping[str, float]
"""Trial id (base's) -> mean step in seconds, of the trials that finished."""


Question = Callable[[Blocks, Blocks, float, Mapping[str, Decision]], dict[str, Decision]]
"""What a measurement is to decide: takes the differences and replicates of all blocks so far, the level of
this look, and the decisions of the look before, of which what was decided stays. Returns the decisions by
base's trial id.
"""


def within_margin(
    margin: float, differences: Blocks, replicates: Blocks, level: float, before: Mapping[str, Decision]
) -> dict[str, Decision]:
    """Decide a comparison's question, all configurations as one family: is head slower by more than `margin`?

    margin: a logarithm. See `Question` for the rest.
    """
    family = {name: (Paired(values, replicates[name]), margin) for name, values in differences.items()}
    return decision.decide(family, level, before)


_LOOK_EVERY = 4
"""Blocks from one look at the data to the next: each look costs the last one a little of its level."""

MOST_BLOCKS = 40
_BLOCK, _CONTROL = 4, 2
"""Samples of a block, and of base against itself at either end."""


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
        self._differences: dict[str, tuple[float, ...]] = {}
        self._replicates: dict[str, tuple[float, ...]] = {}
        self._repeat, self._stopped = count(), ""

    def run(self) -> Comparison:
        """Measure and compare. IncomparableError where the sides have no configuration in common,
        OutOfTimeError where the time is over before the first block.
        """
        if self._plan.exact_only:
            self._sample("base")
            self._pair_up()
            return self._comparison({}, [], [])
        self._tell("control: base against itself")
        before = [self._sample("base") for _ in range(_CONTROL)]
        self._pair_up()
        decisions = self._measure(paired.block_orders(self._plan.most, self._plan.seed))
        self._tell("control: base against itself, again")
        after = [self._keep("base", self._samples.last("base")) for _ in range(_CONTROL)]
        return self._comparison(decisions, before, after)

    def _pair_up(self) -> None:
        """Take one sample of head, and learn which of its trials is which of base's."""
        self._sample("head")
        base, head = (summarize(self._records[side]) for side in ("base", "head"))
        self._base_ids = {pair[1].trial_id: pair[0].trial_id for pair in match_trials(base, head).pairs}
        if not self._base_ids:
            names = " and ".join(self._sources[side].name for side in ("base", "head"))
            raise IncomparableError(f"{names} ran no configuration in common")
        self._differences = dict.fromkeys(self._base_ids.values(), ())
        self._replicates = dict.fromkeys(self._base_ids.values(), ())

    def _measure(self, orders: Sequence[Order]) -> dict[str, Decision]:
        """Take block after block until every comparison is decided."""
        least, levels = self._plan.least, self._plan.levels(self._settings.alpha)
        decisions: dict[str, Decision] = {}
        planned = f"{least} to {len(orders)}" if least < len(orders) else f"{least}"
        for number, order in enumerate(orders, start=1):
            if not self._samples.is_time_for(_BLOCK + _CONTROL):
                return self._stop(number - 1, planned, decisions)
            left = (_BLOCK * max(end - number + 1, 1) + _CONTROL for end in (least, len(orders)))
            self._tell(f"block {number} of {planned}{self._samples.time_left(*left)}")
            self._add_block(order)
            if number in levels:
                decisions = self._look(levels[number], decisions)
                self._tell(f"after {number} blocks: {_progress(decisions)}")
                if all(one.is_decided for one in decisions.values()):
                    break
        return decisions

    def _look(self, level: float, before: Mapping[str, Decision]) -> dict[str, Decision]:
        seen = {name: blocks for name, blocks in self._differences.items() if blocks}
        return self._question(seen, self._replicates, level, before)

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

    def _add_block(self, order: Order) -> None:
        samples: list[Sample] = []
        in_turns = True
        for first, second in (order[:2], order[2:]):
            taken = self._samples.take_in_turns(first, second)
            in_turns &= taken is not None
            records = taken or (self._samples.take(side) for side in (first, second))
            samples += [self._keep(*sample) for sample in zip((first, second), records, strict=True)]
        replicates = paired.replicates_in_turns if in_turns else paired.block_replicates
        for name in self._differences:
            if all(name in sample for sample in samples):
                seconds = [sample[name] for sample in samples]
                self._differences[name] += (paired.block_difference(order, seconds),)
                self._replicates[name] += replicates(order, seconds)

    def _sample(self, side: Side) -> Sample:
        return self._keep(side, self._samples.take(side))

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

    def _comparison(
        self, decisions: Mapping[str, Decision], before: Sequence[Sample], after: Sequence[Sample]
    ) -> Comparison:
        """Judge all that was seen; a control that moved takes every answer about time back."""
        checked = paired.control(
            *({name: [s[name] for s in side if name in s] for name in decisions} for side in (before, after))
        )
        if checked.moved(self._settings.alpha):
            moved = f"{math.expm1(checked.drift):+.0%}"
            why = f"the control failed: base compared with itself moved by {moved} from start to end"
            decisions = {name: decision.doubted(one, why) for name, one in decisions.items()}
        sides = [RunResults.of(self._sources[side], self._records[side]) for side in ("base", "head")]
        data = compare.PairedData(dict(self._differences), checked, self._plan.exact_only, self._stopped)
        return compare.build(sides[0], sides[1], self._settings, decisions, paired=data)


def _progress(decisions: Mapping[str, Decision]) -> str:
    """Return what a look found: the one change, or how many of several are decided."""
    if len(decisions) != 1:
        return f"{sum(one.is_decided for one in decisions.values())} of {len(decisions)} decided"
    (only,) = decisions.values()
    return str(only)
