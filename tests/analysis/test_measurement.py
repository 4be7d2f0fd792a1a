"""A paired measurement with samples from a seeded machine instead of a real one."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from zbench.analysis.compare import Comparison
from zbench.analysis.exact import COUNTS, PEAKS, TRAFFIC
from zbench.analysis.measurement import PairedMeasurement, Plan, Question
from zbench.analysis.paired import BASE_FIRST, HEAD_FIRST, Side, block_orders
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.analysis.trials import Source
from zbench.errors import ExitCode, IncomparableError, OutOfTimeError, UsageError
from zbench.launch.samples import KeptSamples, SampleTaker
from zbench.record.record import Record, Traffic

from .synthetic import Machine, OneByOne, record

SETTINGS = Settings(thresholds=PAIRED_THRESHOLDS)


def measured(
    samples: SampleTaker | Callable[[Side], Sequence[Record]],
    plan: Plan | None = None,
    messages: list[str] | None = None,
    settings: Settings = SETTINGS,
    question: Question | None = None,
    path: Path | None = None,
    max_seconds: float = math.inf,
) -> Comparison:
    """Measure v1 and v2 with these samples, or with a function that takes one after the other."""
    taker = OneByOne(samples) if callable(samples) else samples
    store = KeptSamples(taker, path, {"of": "these"}, max_seconds=max_seconds)
    tell = (messages if messages is not None else []).append
    base, head = Source("v1"), Source("v2")
    with closing(store):
        return PairedMeasurement(base, head, plan or Plan(), settings, store, tell, question).run()


def test_neither_drift_nor_a_spell_of_load_raises_an_alarm() -> None:
    machine = Machine()
    comparison = measured(machine)
    for one in (comparison, measured(Machine(spell=1.1))):
        assert [row.answer for row in one.rows] == ["pass"] * 3
        assert one.exit_code == ExitCode.PASS
    assert comparison.paired is not None
    assert comparison.paired.drift == pytest.approx(0.75 * 0.002 * len(machine.taken), rel=0.5)


def test_a_slowdown_is_found() -> None:
    messages: list[str] = []
    comparison = measured(Machine(factor=1.05), messages=messages)
    assert [row.answer for row in comparison.rows] == ["pass", "regression", "pass"]
    assert comparison.exit_code == ExitCode.REGRESSION
    slower = comparison.rows[1].step_time
    assert slower is not None
    assert slower.low < math.log(1.05) < slower.high
    assert any("block 8 of 8 to 24" in text for text in messages)
    assert any(text.startswith("after 8 blocks: ") and text.endswith(" of 3 decided") for text in messages)


def test_a_machine_that_moves_vetoes_the_answer() -> None:
    """Seen: "pass, faster -59.5 %" for code twice as slow, though base against itself had moved by 115 %."""
    comparison = measured(Machine(factor=0.5, drift=0.02))
    assert comparison.paired is not None
    assert comparison.paired.drift is not None
    assert comparison.paired.drift > 0.25
    assert [row.answer for row in comparison.rows] == ["inconclusive"] * 3
    assert not any(one.faster for _, one in comparison.timed)
    assert all("the machine changed" in one.reason for _, one in comparison.timed)
    assert comparison.exit_code == ExitCode.INCONCLUSIVE


def test_no_blocks_compare_what_needs_no_clock() -> None:
    machine = Machine(factor=3.0)
    assert measured(machine, Plan(0, 0)).exit_code == ExitCode.PASS
    assert machine.taken == ["base", "head"]
    assert measured(Machine(peak=1_200_000), Plan(0, 0)).exit_code == ExitCode.REGRESSION
    assert measured(Machine(verdict="wrong"), Plan(0, 0)).exit_code == ExitCode.CORRECTNESS


def test_a_wrong_head_exits_4_and_one_that_crashes_6() -> None:
    assert measured(Machine(factor=0.5, verdict="wrong")).exit_code == ExitCode.CORRECTNESS
    comparison = measured(Machine(outcome="crashed"))
    assert comparison.exit_code == ExitCode.TRIALS_FAILED
    assert [row.step_time for row in comparison.rows] == [None] * 3


@pytest.mark.parametrize("figure", [*COUNTS, *TRAFFIC, *PEAKS])
def test_an_exact_figure_decides_where_time_tells_nothing(figure: str) -> None:
    """A copy, a collective, an allocation a step: red on a machine that vetoes every time."""

    def grown(counts: dict[str, int]) -> dict[str, int]:
        return counts | {name: counts[name] + 1 + counts[name] // 10 for name in counts if name == figure}

    def more(one: Record) -> Record:
        assert one.memory is not None
        peaks = grown({name: getattr(one.memory, name) for name in PEAKS})
        (calls,) = one.traffic.values()
        traffic = grown({"traffic_bytes": calls.bytes, "traffic_calls": calls.calls})
        return replace(
            one,
            counts=grown(one.counts),
            traffic={"all_reduce": Traffic(traffic["traffic_calls"], traffic["traffic_bytes"])},
            memory=replace(one.memory, **peaks),
        )

    machine = Machine(drift=0.02)

    def take(side: Side) -> list[Record]:
        taken = [replace(one, counts=dict.fromkeys(COUNTS, 10)) for one in machine(side)]
        return [more(one) for one in taken] if side == "head" else taken

    comparison = measured(take)
    assert {one.answer for _, one in comparison.timed} == {"inconclusive"}
    assert {row.answer for row in comparison.rows} == {"regression"}
    assert {
        change.metric for row in comparison.rows for change in row.exact if change.answer == "regression"
    } == {figure}
    assert comparison.exit_code == ExitCode.REGRESSION


def test_it_stops_when_decided_and_not_before() -> None:
    machines = [Machine(), Machine(factor=1.02)]
    for machine in machines:
        measured(machine, Plan(least=10, most=14))
    outside_blocks = 2
    blocks = [(len(machine.taken) - outside_blocks) / 4 for machine in machines]
    assert blocks[0] < blocks[1] == 14, "a change of the margin's own size is never decided"


def test_every_block_is_counterbalanced_and_the_order_is_drawn() -> None:
    machine = Machine()
    measured(machine, Plan(least=12, most=12, seed=3))
    blocks = [tuple(machine.taken[start : start + 4]) for start in range(2, 50, 4)]
    assert set(blocks) == {BASE_FIRST, HEAD_FIRST}
    assert blocks == block_orders(12, 3) != block_orders(12, 4)
    assert machine.taken[:2] == ["base", "head"]


def test_sides_without_a_common_configuration_are_incomparable() -> None:
    def take(side: Side) -> list[Record]:
        return [record(0.1, axes={"of": side})]

    with pytest.raises(IncomparableError, match="v1 and v2 ran no configuration in common"):
        measured(take)


def test_looks_come_after_every_fourth_block_and_the_last() -> None:
    assert list(Plan(8, 24).levels(0.01)) == [8, 12, 16, 20, 24]
    assert list(Plan(7, 9).levels(0.01)) == [7, 9]


def test_a_trial_that_fails_once_loses_only_that_block() -> None:
    machine = Machine()

    def take(side: Side) -> list[Record]:
        records = machine(side)
        if len(machine.taken) == 10:
            records[0] = replace(record(outcome="timeout", axes=records[0].axes), repeat=0)
        return records

    settings = replace(SETTINGS, fail_on=frozenset({"regression"}))
    comparison = measured(take, Plan(12, 12), settings=settings)
    assert comparison.paired is not None
    lost, *others = [len(values) for values in comparison.paired.differences.values()]
    assert [lost + 1] * 2 == others == [12, 12]


class InTurns:
    """Pairs whose two samples share the state of the machine, and single samples besides."""

    def __init__(self, machine: Machine, *, noise: float) -> None:
        self.machine, self.noise, self.pairs = machine, noise, 0
        self.alone: list[Side] = []

    def take(self, side: Side) -> list[Record]:
        self.alone.append(side)
        return self.machine(side)

    def take_in_turns(self, first: Side, second: Side) -> tuple[list[Record], list[Record]]:
        self.pairs += 1
        moved = math.exp(self.machine.rng.normal(0, self.noise))
        left, right = ([slowed(one, moved) for one in self.machine(side)] for side in (first, second))
        return left, right

    def remember(self, side: Side, sample: Sequence[Record]) -> None:
        """Need nothing of it."""


def slowed(one: Record, factor: float) -> Record:
    assert one.timing is not None
    step = factor * one.timing.median_step_s
    return replace(one, timing=replace(one.timing, median_step_s=step, step_seconds=[step]))


@pytest.mark.parametrize(("factor", "answer"), [(1.0, "pass"), (1.05, "regression")])
def test_what_moves_between_pairs_in_turns_costs_no_power(factor: float, answer: str) -> None:
    """A machine that moves by 20 % from pair to pair, and by 1 % between the samples of one."""
    samples = InTurns(Machine(factor=factor, drift=0.0), noise=0.2)
    comparison = measured(samples, Plan(8, 8))
    assert samples.pairs == 16
    assert samples.alone == ["base", "head"]
    assert samples.machine.taken[2:] == [side for order in block_orders(8, 0) for side in order]
    assert comparison.rows[1].answer == answer
    assert comparison.rows[0].answer == "pass"


def test_an_interrupted_measurement_goes_on_and_ends_alike(tmp_path: Path) -> None:
    """A kill in mid-write leaves half a line; no sample is taken twice, and its duration is known."""
    path = tmp_path / "kept.jsonl"
    whole = Machine(factor=1.05)
    parts = Machine(factor=1.05)
    messages = []
    once = measured(whole)

    def dies(side: Side) -> list[Record]:
        if len(parts.taken) == 17:
            raise KeyboardInterrupt
        return parts(side)

    with pytest.raises(KeyboardInterrupt):
        measured(dies, path=path)
    with path.open("a") as file:
        file.write('{"seconds": 1.0, "samp')
    comparison = measured(parts, path=path, messages=messages)
    assert parts.taken == whole.taken
    assert comparison.paired == once.paired
    assert [row.step_time for row in comparison.rows] == [row.step_time for row in once.rows]
    assert any(text.startswith("block 1 of 8 to 24 (") and text.endswith(" left)") for text in messages)
    with pytest.raises(UsageError, match="of was these, is others; measure again without --resume"):
        KeptSamples(OneByOne(parts), path, {"of": "others"})
    path.write_text("no JSON\n")
    with pytest.raises(UsageError, match=r":1: damaged line"):
        measured(parts, path=path)


class Hours:
    """A clock; each sample takes an hour."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.now = machine, 0.0

    def __call__(self, side: Side) -> list[Record]:
        self.now += 3600
        return self.machine(side)


@pytest.mark.parametrize("hours", [10, 60])
def test_a_measurement_out_of_time_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """What a look decided stays. What no look decided is inconclusive, however clear it may seem."""
    path = tmp_path / "kept.jsonl"
    messages = []
    take = Hours(Machine(factor=1.03))
    monkeypatch.setattr("zbench.launch.samples.time.monotonic", lambda: take.now)
    comparison = measured(take, None, messages, path=path, max_seconds=3600 * hours)
    blocks = {10: 2, 60: 14}[hours]
    assert len(take.machine.taken) == 2 + 4 * blocks
    assert comparison.paired is not None
    assert comparison.paired.stopped == f"stopped at --max-time after {blocks} of 8 to 24 blocks"
    answers = [row.answer for row in comparison.rows]
    assert answers == {10: ["inconclusive"] * 3, 60: ["pass", "suspected", "pass"]}[hours]
    assert "block 1 of 8 to 24 (32:00:00 to 96:00:00 left)" in messages
    assert measured(take, path=path).exit_code == ExitCode.INCONCLUSIVE
    with pytest.raises(OutOfTimeError, match="after 0 of 8 to 24 blocks"):
        measured(take, max_seconds=3600)


def test_a_measurement_that_another_process_continues_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    first = KeptSamples(OneByOne(Machine()), path, {"of": "these"})
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is being written by another process; wait for it or end it first"):
        KeptSamples(OneByOne(Machine()), path, {"of": "these"})
    first.close()
    assert path.read_bytes() == before
    KeptSamples(OneByOne(Machine()), path, {"of": "these"}).close()


@pytest.mark.parametrize("damage", ["changed", "lost", "of another writer"])
def test_samples_before_a_damaged_line_are_kept_and_the_rest_is_set_aside(
    tmp_path: Path, damage: str
) -> None:
    path, other = tmp_path / "kept.jsonl", tmp_path / "other.jsonl"
    whole, parts = Machine(factor=1.05), Machine(factor=1.05)
    once = measured(whole, path=path)
    measured(Machine(factor=1.1), path=other)
    lines_of = [file.read_bytes().splitlines(keepends=True) for file in (path, other)]
    at = 11
    rest = {
        "changed": [lines_of[0][at].replace(b"0", b"1", 1), *lines_of[0][at + 1 :]],
        "lost": lines_of[0][at + 1 :],
        "of another writer": lines_of[1][at : at + 1] + lines_of[0][at:],
    }[damage]
    path.write_bytes(b"".join([*lines_of[0][:at], *rest]))
    store = KeptSamples(OneByOne(parts), path, {"of": "these"})
    assert f"{path}:{at + 1}: damaged line; it and the rest are in" in store.damage
    store.close()
    assert path.read_bytes() == b"".join(lines_of[0][:at])
    assert path.with_suffix(".damaged").read_bytes() == b"".join(rest)
    samples = [json.loads(line)["samples"] or () for line in lines_of[0][1:at]]
    for side in whole.taken[: sum(map(len, samples))]:
        parts(side)
    comparison = measured(parts, path=path)
    assert parts.taken == whole.taken, "no sample that was kept is taken again"
    assert comparison.paired == once.paired
