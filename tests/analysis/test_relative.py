"""Each configuration beside its counterpart: the choice, the ratio and its interval."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from zbench.analysis.relative import Relative, compared
from zbench.errors import UsageError
from zbench.record.record import Heat, Record
from zbench.record.summary import summarize

from .synthetic import record

NOISE = (1.0, 1.02, 0.97, 1.01)


def repeats(
    axes: Mapping[str, Any], step_s: float, heats: str = "", *, alone: bool = False, **more: Any
) -> list[Record]:
    """Return a record a repeat; `heats`: a letter each, the heat that it was in; its pace is the letter's."""
    records = []
    for number, noise in enumerate(NOISE):
        item = record(step_s, axes=dict(axes), repeat=number, **more)
        item = replace(
            item, config={"engine": {"engine": "builtin", "zero_stage": 0} | dict(axes), "run": {}}
        )
        if heats:
            pace = noise * (1 + "abcdefgh".index(heats[number]))
            turns = [step_s * pace * wobble for wobble in (0.99, 1.01)]
            heat = Heat(f"{number}{heats[number]}", turns, [0.05 * pace] * 2 if alone else [])
            timing = replace(item.timing, step_seconds=turns, median_step_s=step_s * pace)
            item = replace(item, heat=heat, timing=timing)
        records.append(item)
    return records


def relative(*groups: list[Record], to: tuple[str, ...], by: tuple[str, ...] = ()) -> Relative:
    return compared(summarize([one for group in groups for one in group]), to, by)


def test_a_counterpart_agrees_in_all_other_axes() -> None:
    groups = [
        repeats({"engine": engine, "dtype": dtype}, step_s, peak=peak)
        for engine, dtype, step_s, peak in (
            ("builtin", "float32", 0.09, 50), ("ddp", "float32", 0.1, 100),
            ("builtin", "bfloat16", 0.03, 30), ("ddp", "bfloat16", 0.02, 60),
        )
    ]  # fmt: skip
    table = relative(*groups, to=("engine=ddp",), by=("dtype",))
    assert [row.summary.axes for row in table.rows] == [groups[0][0].axes, groups[2][0].axes]
    assert [row.counterpart.axes for row in table.rows] == [groups[1][0].axes, groups[3][0].axes]
    assert [row.time for row in table.rows] == [pytest.approx((0.9,) * 3), pytest.approx((1.5,) * 3)]
    assert [row.peak for row in table.rows] == [pytest.approx((0.5,) * 3)] * 2
    assert (table.by, table.lonely) == (("dtype",), ())


def test_an_axis_left_out_counts_with_its_configurations_value() -> None:
    """`when` and `include` leave axes out."""
    ours = repeats({"engine": "builtin", "zero_stage": 2}, 0.1)
    same = repeats({"engine": "ddp", "zero_stage": 2, "engine_python": None}, 0.2)
    other = repeats({"engine": "ddp", "zero_stage": 2, "engine_python": "theirs"}, 0.4)
    (row,) = relative(ours, same, other, to=("engine=ddp",)).rows
    assert row.time.value == pytest.approx(0.5)
    rows = relative(ours, other, to=("engine=ddp", "engine_python=theirs")).rows
    assert [row.time.value for row in rows] == [pytest.approx(0.25)]


def test_the_faster_of_several_and_what_may_differ_too() -> None:
    stages = [repeats({"engine": "builtin", "zero_stage": stage}, 0.1) for stage in (0, 1)]
    ddp = repeats({"engine": "ddp", "zero_stage": 0}, 0.12)
    sharded = repeats({"engine": "zero_redundancy", "zero_stage": 1}, 0.11)
    wrong = repeats({"engine": "fsdp2", "zero_stage": 1}, 0.01, verdict="wrong")
    to = ("best:engine=ddp,zero_redundancy,fsdp2", "best:zero_stage=0,1")
    table = relative(*stages, ddp, sharded, wrong, to=to)
    assert [row.counterpart.axes["engine"] for row in table.rows] == ["zero_redundancy"] * 2
    assert [row.time.value for row in table.rows] == [pytest.approx(1 / 1.1)] * 2
    assert [s.axes["zero_stage"] for s in relative(*stages, ddp, to=("engine=ddp",)).lonely] == [1]


def test_alone_links_configurations_of_different_heats() -> None:
    """The machine is up to four times as slow in another heat; the two are alike but for 10 %."""
    ours = repeats({"engine": "builtin"}, 0.09, "abcd", alone=True)
    for heats, shared in (("abcd", 4), ("abcc", 3), ("dcba", 0), ("abba", 2)):
        (row,) = relative(ours, repeats({"engine": "ddp"}, 0.1, heats, alone=True), to=("engine=ddp",)).rows
        assert row.heats == shared
        assert row.time.value == pytest.approx(0.9, rel=0.03), "by the heats shared, or linked by alone"
        assert row.time.low < row.time.value < row.time.high


def test_one_heat_shows_no_spread_and_several_an_interval() -> None:
    ours, theirs = repeats({"engine": "builtin"}, 0.09, "abcd"), repeats({"engine": "ddp"}, 0.1, "abcd")
    (row,) = relative(ours[:1], theirs[:1], to=("engine=ddp",)).rows
    assert (row.time.low, row.time.high) == (0, math.inf)
    (row,) = relative(ours, theirs, to=("engine=ddp",)).rows
    assert 0.87 < row.time.low < 0.9 < row.time.high < 0.93


@pytest.mark.parametrize(
    ("to", "by", "says"),
    [
        (("engine",), (), "expected KEY=VALUE, or best:KEY=VALUE,VALUE"),
        (("engin=ddp",), (), "did you mean 'engine'"),
        (("engine=deepspeed",), (), "there is engine=builtin, ddp; zero_stage=1, 0: name another value"),
        (("engine=ddp", "zero_stage=0"), ("dtype",), "--by: expected an axis of these"),
    ],
)  # fmt: skip
def test_without_a_counterpart_the_message_says_what_there_is(
    to: tuple[str, ...], by: tuple[str, ...], says: str
) -> None:
    ours = repeats({"engine": "builtin", "zero_stage": 1}, 0.1)
    theirs = repeats({"engine": "ddp", "zero_stage": 0}, 0.1)
    with pytest.raises(UsageError) as refused:
        relative(ours, theirs, to=to, by=by)
    assert says in str(refused.value)
