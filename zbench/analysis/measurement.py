"""A paired measurement from first sample to comparison; how a sample is taken is given from outside."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from zbench.analysis import compare, decision
from zbench.analysis.compare import Comparison, Settings
from zbench.analysis.decision import Decision, Paired
from zbench.analysis.matching import match_trials
from zbench.analysis.paired import Blocks, Control, Order, Side, block_difference, block_orders, control
from zbench.analysis.statistics import MAX_EXACT_PAIRS, minimal_pairs
from zbench.analysis.trials import RunResults, Source
from zbench.errors import IncomparableError, UsageError
from zbench.record.record import Record
from zbench.record.summary import summarize

Take = Callable[[Side], Sequence[Record]]
"""Runs the whole sweep once on one side, in processes of its own, and returns its records."""

Sample = Mapping[str, float]
"""Trial id (base's) -> median step in seconds, of the trials that finished."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a paired measurement goes on. `precision` is a half width (a logarithm), to stop at.

    confirms: whether alarmed trials are measured again before they count.
    """

    least: int = 12
    most: int = 24
    precision: float = math.log1p(0.02)
    seed: int = 0
    confirms: bool = True


def check_plan(plan: Plan, comparisons: int, alpha: float) -> None:
    """Raise UsageError for a plan that cannot answer: too few blocks for alpha, or too many."""
    least = minimal_pairs(alpha, comparisons)
    if plan.most < plan.least:
        raise UsageError(f"--blocks: expected MIN:MAX with MIN at most MAX, got {plan.least}:{plan.most}")
    if plan.least < least:
        raise UsageError(
            f"--blocks: {plan.least} blocks cannot reach alpha {alpha:g} over {comparisons} comparisons, "
            f"whatever they show; at least {least} are needed (or a larger --alpha)"
        )
    if plan.most > MAX_EXACT_PAIRS:
        raise UsageError(f"--blocks: expected at most {MAX_EXACT_PAIRS} blocks, got {plan.most}")


class PairedMeasurement:
    """Takes samples of base and head by a plan, decides, and confirms an alarm once on fresh samples."""

    def __init__(
        self,
        base: Source,
        head: Source,
        plan: Plan,
        settings: Settings,
        take: Take,
        tell: Callable[[str], None],
    ) -> None:
        self._sources: dict[Side, Source] = {"base": base, "head": head}
        self._plan, self._settings, self._take, self._tell = plan, settings, take, tell
        self._records: dict[Side, list[Record]] = {"base": [], "head": []}
        self._base_ids: dict[str, str] = {}
        self._repeat = count()

    def run(self) -> Comparison:
        """Measure and compare. IncomparableError where the sides have no configuration in common."""
        self._tell("control: base against itself")
        before = [self._sample("base") for _ in range(2)]
        self._pair_up()
        orders = block_orders(self._plan.most, self._plan.seed)
        first = self._blocks(orders, self._plan.least, "block")
        decisions = self._decide(first)
        alarmed = [name for name, found in decisions.items() if found.answer == "regression"]
        fresh: Blocks = {}
        if alarmed and self._plan.confirms:
            self._tell(f"{len(alarmed)} alarms; measuring again to confirm them")
            again = block_orders(len(max(first.values(), key=len)), self._plan.seed + 1)
            measured = self._blocks(again, len(again), "confirming block")
            fresh = {name: measured[name] for name in alarmed}
            decisions = decision.confirmed(decisions, self._decide(fresh))
        self._tell("control: base against itself, again")
        after = [self._sample("base") for _ in range(2)]
        checked = control(
            *({name: [s[name] for s in side if name in s] for name in first} for side in (before, after))
        )
        return self._comparison(decisions, first, fresh, checked)

    def _pair_up(self) -> None:
        """Take one sample of head, and learn which of its trials is which of base's."""
        self._sample("head")
        base, head = (summarize(self._records[side]) for side in ("base", "head"))
        for match in match_trials(base, head).matches:
            self._base_ids[match.head.trial_id] = match.base.trial_id
        if not self._base_ids:
            names = " and ".join(self._sources[side].name for side in ("base", "head"))
            raise IncomparableError(f"{names} ran no configuration in common")

    def _blocks(self, orders: Sequence[Order], least: int, what: str) -> Blocks:
        found: dict[str, tuple[float, ...]] = dict.fromkeys(self._base_ids.values(), ())
        for number, order in enumerate(orders, start=1):
            self._tell(f"{what} {number} of {least}{f' to {len(orders)}' if least < len(orders) else ''}")
            samples = [self._sample(side) for side in order]
            for name in found:
                if all(name in sample for sample in samples):
                    found[name] += (block_difference(order, [sample[name] for sample in samples]),)
            evidence = [Paired(values) for values in found.values() if values]
            if number >= least and decision.precise_enough(
                evidence, self._settings.alpha, self._plan.precision
            ):
                break
        return found

    def _sample(self, side: Side) -> Sample:
        repeat = next(self._repeat)
        records = [replace(record, repeat=repeat) for record in self._take(side)]
        self._records[side] += records
        seconds: dict[str, list[float]] = {}
        for record in records:
            if record.outcome == "ok" and record.timing is not None:
                name = self._base_ids.get(record.trial_id, "") if side == "head" else record.trial_id
                seconds.setdefault(name, []).append(record.timing.median_step_s)
        return {name: statistics.median(values) for name, values in seconds.items()}

    def _decide(self, blocks: Blocks) -> dict[str, Decision]:
        measured = {name: values for name, values in blocks.items() if values}
        return decision.decide(compare.paired_family(measured, self._settings), self._settings.alpha)

    def _comparison(
        self, decisions: dict[str, Decision], first: Blocks, fresh: Blocks, checked: Control
    ) -> Comparison:
        sides = [RunResults.of(self._sources[side], self._records[side]) for side in ("base", "head")]
        data = compare.PairedData(first, fresh, checked)
        return compare.build(sides[0], sides[1], self._settings, decisions=decisions, paired=data)
