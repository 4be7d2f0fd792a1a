"""False alarms and power of paired comparisons, measured on real trials of this machine.

    python -m zbench.bench.compare [--families N] [--redraws R] [--power-families N] [--out FILE]

A family is what `zbench compare --paired` measures: blocks of base-head-head-base (or its mirror image, by a
coin), each sample a fresh process. Its rounds are those of the command (`PairedMeasurement`) on a sweep of
one configuration, the ZeRO stages in turn; only the samples come from a few warm servers instead of a new
command line each, so that enough fit into minutes: about 20 with the defaults, on 2 quiet cores.

One process of one thread leaves a core of a small machine to everything else; with as many ranks as cores
each waits for whichever was interrupted (`--world-size 2`). With several configurations a family
(`--configurations 4`) the samples of one lie further apart in time. Both make blocks noisier.

Alarms: base and head are the same. As no side differs, which of them a sample belongs to is decided by the
coin alone; so the same samples are decided again under redrawn coins. Redrawn comparisons share their trials
with the measured one and with each other, and are counted apart. Power: head's every step is 5 % longer
(`zbench.bench.slowed`), decided from 12 blocks.
"""

import argparse
import contextlib
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice
from typing import Any

from zbench.analysis import compare, decision
from zbench.analysis.compare import PAIRED_THRESHOLDS, Comparison, Settings
from zbench.analysis.measurement import OneByOne, PairedMeasurement, Plan
from zbench.analysis.paired import Blocks, Side
from zbench.analysis.trials import Source
from zbench.bench import results
from zbench.bench.slowed import SHARE
from zbench.bench.trials import warm_runner
from zbench.launch.executor import DEFAULT_TARGETS, Targets
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import TrialSpec

MODEL = {"model": "gpt", "preset": "nano", "sequence_length": 128, "micro_batch_size": 4}
BLOCKS = 12
SERVERS = 3
SLOWED = replace(DEFAULT_TARGETS, rank="zbench.bench.slowed:run_rank")
SETTINGS = Settings(thresholds=PAIRED_THRESHOLDS)
ALARM_BAR, POWER_BAR = 0.01, 0.90


@dataclass
class Tally:
    """What came of a kind of family. `blocks`: each family's log-ratios of each configuration.

    loaded: how many samples say that other processes took CPU time.
    """

    comparisons: int = 0
    regressions: int = 0
    first_alarms: int = 0
    loaded: int = 0
    blocks: list[dict[str, list[float]]] = field(default_factory=list)

    def add(self, found: Comparison) -> None:
        """Count a measured family; an alarm is a `regression` only if fresh samples confirmed it."""
        assert found.paired is not None
        self.blocks.append({name: list(values) for name, values in found.paired.blocks.items()})
        self.comparisons += len(found.rows)
        self.regressions += sum(row.answer == "regression" for row in found.rows)
        self.first_alarms += alarms(found.paired.blocks)
        records = [record for row in found.rows for side in (row.base, row.head) for record in side.records]
        self.loaded += sum(bool(record.warnings) for record in records)

    @property
    def spread(self) -> float | None:
        """The standard deviation of one block's log-ratio: the median over families and configurations."""
        found = [statistics.stdev(v) for family in self.blocks for v in family.values() if len(v) > 1]
        return statistics.median(found) if found else None

    @property
    def shift(self) -> float | None:
        """The median log-ratio."""
        found = [value for family in self.blocks for values in family.values() for value in values]
        return statistics.median(found) if found else None


def alarms(blocks: Blocks) -> int:
    """Return how many comparisons of a family are decided as regressions, before any confirmation."""
    levels = decision.Levels.single(SETTINGS.alpha)
    decisions = decision.decide(compare.paired_family(blocks, SETTINGS), levels)
    return sum(found.answer == "regression" for found in decisions.values())


def redrawn(blocks: Blocks, coin: random.Random) -> Blocks:
    """Return the blocks as had each block's coin, which all configurations share, fallen anew."""
    signs = [coin.choice((1, -1)) for _ in range(max(map(len, blocks.values())))]
    return {
        name: tuple(sign * value for sign, value in zip(signs, values, strict=False))
        for name, values in blocks.items()
    }


def trials(world_size: int, steps: int) -> tuple[TrialSpec, ...]:
    """Return the configurations that are measured: one at each stage."""
    sweep = sweep_from_mapping(
        {
            "name": "compare",
            "workload": MODEL,
            "run": {"world_size": world_size, "threads_per_rank": 1, "warmup_steps": 2, "steps": steps},
            "engine": {"gradient_clipping": 1.0},
            "axes": {"zero_stage": [0, 1, 2, 3]},
            "verify": {"mode": "off"},
        },
        environ={},
    )
    return tuple(expand(sweep).trials)


def family(wanted: Sequence[TrialSpec], head: Targets, plan: Plan) -> Comparison:
    """Measure one family; `head` is what runs in head's processes.

    The memory layout of a server is inherited by the processes that it forks, and can cost a percent. So
    each sample draws one of several servers, as each sample of the command has its own; if base and head are
    the same code, they share them.
    """
    repeat, draw = count(), random.Random(plan.seed)
    with contextlib.ExitStack() as stack:

        def servers(targets: Targets) -> list[TrialRunner]:
            started = (warm_runner(targets=targets, rerun_disturbed=True) for _ in range(SERVERS))
            return [stack.enter_context(one) for one in started]

        base = servers(DEFAULT_TARGETS)
        pools: dict[Side, list[TrialRunner]] = {"base": base, "head": base}
        if head is not DEFAULT_TARGETS:
            pools["head"] = servers(head)

        def take(side: Side) -> list[Record]:
            number, runner = next(repeat), draw.choice(pools[side])
            return [runner.run(trial, repeat=number) for trial in wanted]

        return PairedMeasurement(Source("base"), Source("head"), plan, SETTINGS, OneByOne(take), say).run()


def say(text: str) -> None:
    """Tell the progress of a measurement."""
    print(f"  {text}", file=sys.stderr)


def row(name: str, comparisons: int, called: int, bar: str) -> list[object]:
    """Return a row of the table."""
    share = f"{called / comparisons:.1%}" if comparisons else "-"
    return [name, comparisons, called, share, bar]


def table(alike: Tally, again: tuple[int, int], slowed: Tally) -> str:
    """Return what was found, as Markdown."""
    percent = "-" if slowed.shift is None else f"{slowed.shift:+.1%}"
    spreads = ["-" if one.spread is None else f"{one.spread:.1%}" for one in (alike, slowed)]
    few, most = f"<= {ALARM_BAR:.0%}", f">= {POWER_BAR:.0%}"
    rows = [
        row("A/A, as decided (alarms confirmed)", alike.comparisons, alike.regressions, few),
        row("A/A, before confirmation", alike.comparisons, alike.first_alarms, ""),
        row("A/A, the same samples, coins redrawn", *again, few),
        row(f"head {SHARE:.0%} slower", slowed.comparisons, slowed.first_alarms, most),
    ]
    columns = ("paired comparisons on real trials", "comparisons", "regressions called", "share", "bar")
    return (
        f"{results.table(columns, rows)}\n\n"
        f"{BLOCKS} blocks a comparison. Standard deviation of one block's log-ratio: {spreads[0]} (A/A), "
        f"{spreads[1]} (slowed); median log-ratio of slowed blocks {percent}. Samples taken while other "
        f"processes loaded the machine: {alike.loaded} and {slowed.loaded}."
    )


def write(given: argparse.Namespace, text: str, alike: Tally, again: tuple[int, int], slowed: Tally) -> None:
    """Write the table, and beside it every block."""
    document: dict[str, Any] = {
        "sample": {"world_size": given.world_size, "steps": given.steps, "model": MODEL},
        "configurations": given.configurations,
        "a_a": vars(alike) | {"redrawn": {"comparisons": again[0], "regressions": again[1]}},
        "power": vars(slowed) | {"true_slowdown": SHARE},
        "bars": {"alarms": ALARM_BAR, "power": POWER_BAR},
    }
    results.write(given.out, text, document)


def main() -> None:
    """Measure, print the table, and write it after each family, so that an interruption loses only one."""
    parser = results.parser(__doc__)
    parser.add_argument("--families", type=int, default=20, help="A/A families")
    parser.add_argument("--redraws", type=int, default=15, help="times that each is decided again")
    parser.add_argument("--power-families", type=int, default=20, help="families with a slowed head")
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--configurations", type=int, default=1, help="comparisons of one family")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a sample")
    given = parser.parse_args()
    stages = cycle(trials(given.world_size, given.steps))
    alike, slowed, coin, text = Tally(), Tally(), random.Random(0), ""
    compared = called = 0
    for number in range(given.families + given.power_families):
        is_alike = number < given.families
        print(f"family {number + 1} of {given.families + given.power_families}", file=sys.stderr)
        plan = Plan(BLOCKS, BLOCKS, seed=number)
        wanted = tuple(islice(stages, given.configurations))
        found = family(wanted, DEFAULT_TARGETS if is_alike else SLOWED, plan)
        (alike if is_alike else slowed).add(found)
        if is_alike and found.paired is not None:
            compared += given.redraws * len(found.rows)
            called += sum(alarms(redrawn(found.paired.blocks, coin)) for _ in range(given.redraws))
        text = table(alike, (compared, called), slowed)
        write(given, text, alike, (compared, called), slowed)
    print(text)


if __name__ == "__main__":
    main()
