"""Configurations relative to their counterparts: ratios, headings, what sums a table up, who has none."""

import math
from typing import Any

import pytest

from tests.analysis.synthetic import record
from zbench.analysis.relative import Ratio, Relative, RelativeRow
from zbench.record.summary import ConfigSummary, summarize
from zbench.report import relative as report

EXACT = Ratio(0.5, 0.5, 0.5)
NAMED = ("ddp", "fsdp")


def one(**axes: Any) -> ConfigSummary:
    (summary,) = summarize([record(axes=axes)])
    return summary


def row(size: int, time: Ratio, peak: Ratio | None = None, against: str = "ddp", **axes: Any) -> RelativeRow:
    mine, other = (one(engine=engine, size=size, **axes) for engine in ("builtin", against))
    return RelativeRow(mine, other, time, peak, 3)


def of(*rows: RelativeRow, lonely: int = 0, by: tuple[str, ...] = ()) -> Relative:
    alone = tuple(one(size=n) for n in range(lonely))
    return Relative(rows, alone, {"engine": NAMED}, tuple(rows[0].summary.axes), by)


@pytest.mark.parametrize(
    ("time", "peak", "texts", "figures"),
    [
        (
            Ratio(0.934, 0.912, 1.1),
            EXACT,
            ["0.93 (0.91 to 1.10)", "0.50"],
            [0.934, 0.912, 1.1, 0.5, 0.5, 0.5],
        ),
        (Ratio(1.2, 0.0, math.inf), None, ["1.20", "-"], [1.2, *[None] * 5]),
    ],
)
def test_a_ratio_of_several_repeats_has_an_interval(
    time: Ratio, peak: Ratio | None, texts: list[str], figures: list[float | None]
) -> None:
    relative = of(row(1, time, peak))
    ((table,), (document,)) = report.relative_tables(relative), report.relative_documents(relative)
    assert table.texts()[0][:2] == texts
    names = [f"{name}_{part}" for name in ("time", "peak") for part in ("ratio", "low", "high")]
    assert [document[name] for name in names] == figures
    sides = document["axes"], document["against_axes"]
    assert sides == ({"engine": "builtin", "size": 1}, {"engine": "ddp", "size": 1})
    assert document["shared_heats"] == 3


def test_several_rows_are_summed_up_and_one_is_not() -> None:
    times = [Ratio(0.9, 0.8, 1.0), Ratio(1.1, 1.0, 1.2), Ratio(1.4, 1.3, 1.5)]
    rows = [row(size, time, EXACT if size else None) for size, time in enumerate(times)]
    (table,) = report.relative_tables(of(*rows))
    above = "the whole interval is above 1 in"
    assert table.below == (
        f"time 1.10 in the median, 1.40 (1.30 to 1.50) at most, {above} 1 of 3 rows; "
        f"peak 0.50 in the median, 0.50 at most, {above} 0 of 2 rows"
    )
    (single,) = report.relative_tables(of(rows[2]))
    assert single.below == ""


@pytest.mark.parametrize(
    ("against", "caption", "titles"),
    [
        (("ddp", "ddp"), "engine=builtin stage=1 against engine=ddp", ["size"]),
        (NAMED, "engine=builtin stage=1", ["size", "against"]),
    ],
)
def test_what_all_rows_share_is_in_the_heading(
    against: tuple[str, str], caption: str, titles: list[str]
) -> None:
    rows = [row(size, EXACT, None, other, stage=1) for size, other in enumerate(against)]
    (table,) = report.relative_tables(of(*rows))
    assert table.caption == caption
    assert table.titles[: table.titles.index("time (95 %)")] == titles
    alone = report.relative_tables(of(*rows, by=("size",)))
    assert [one.caption for one in alone] == [
        f"engine=builtin size={size} stage=1 against engine={other}" for size, other in enumerate(against)
    ]
