"""What a page and its charts do with limits: of memory, of rows, of what is known."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.analysis.synthetic import record, results, trial
from tests.report.keeping import drawn
from zbench.analysis.compare import compare_runs
from zbench.analysis.effects import Effect
from zbench.analysis.history import Change, Series, Visit
from zbench.analysis.settings import Settings
from zbench.record.record import MemoryPeaks, Record
from zbench.report.html import axes, charts, style
from zbench.report.html.content import Report, categories, report_of
from zbench.report.html.drawing import Canvas
from zbench.report.html.page import render
from zbench.report.html.timelines import trend
from zbench.spec.sweep import ObjectiveSpec

from .samples import pictures


def with_limit(limit: float, *, downward: bool = False) -> Axes:
    """Return a chart of 0 to 10 MiB with this limit, in MiB."""
    sheet = Figure().add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, 10), ylim=(1, 0) if downward else (0, 1))
    mib = axes.Unit(2.0**20, "MiB")
    axes.limit_line(SimpleNamespace(axes=sheet), limit * 2**20, mib)  # type: ignore[arg-type]
    return sheet


@pytest.mark.parametrize(
    ("limit", "right"), [(5, 10), (9.5, 10), (10, 10.3), (20, 20.6), (30, 30.9), (31, 10)]
)
def test_a_limit_up_to_three_times_the_chart_is_drawn_and_the_chart_reaches_it(
    limit: float, right: float
) -> None:
    sheet = with_limit(limit)
    assert [list(line.get_xdata()) for line in sheet.lines] == ([[limit, limit]] if limit <= 30 else [])
    assert sheet.get_xlim() == pytest.approx((0, right))


def test_a_limit_beyond_three_times_the_chart_is_told_in_the_corner_above_it() -> None:
    (label,) = with_limit(31).texts
    assert label.get_text() == "limit 31 MiB, beyond this chart"
    assert (label.get_position(), label.get_ha()) == ((1, 1.03), "right")


@pytest.mark.parametrize(("limit", "side"), [(4, "left"), (5, "left"), (6, "right")])
@pytest.mark.parametrize(("downward", "height"), [(True, 1.0), (False, 1.03)])
def test_a_limits_text_lies_above_the_chart_on_the_side_with_more_room(
    limit: float, side: str, downward: bool, height: float
) -> None:
    (label,) = with_limit(limit, downward=downward).texts
    assert (label.get_ha(), label.get_position()) == (side, (limit, height))


@pytest.mark.parametrize(("narrow", "right", "step"), [(False, 13.5, 2.5), (True, 9.0, 5.0)])
@pytest.mark.parametrize("shape", ["scatter", "rows"])
def test_ticks_make_six_parts_of_a_wide_chart_at_most_and_three_of_a_narrow_one(
    shape: str, narrow: bool, right: float, step: float
) -> None:
    figure = Figure()
    canvas = Canvas(figure, figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, right)), narrow=narrow)
    if shape == "scatter":
        axes.scatter(canvas, "MiB", "memory", "tokens/s")
    else:
        axes.below(canvas, "MiB", 2)
    inside = [tick for tick in canvas.axes.get_xticks() if 0 <= tick <= right]
    assert inside == [step * n for n in range(len(inside))]
    assert len(inside) == 1 + right // step


def report(*records: Record, **limits: str) -> Report:
    base = report_of(results(records))
    return replace(base, objective=ObjectiveSpec(maximize=["tokens_per_s"], subject_to=limits))


def test_the_limit_of_a_metric_is_the_largest_value_that_its_own_constraints_allow() -> None:
    page = report(record(), peak_device_bytes="<= 2Gi", peak_host_bytes="< 3Gi", median_step_s=">= 1s")
    assert page.limit("peak_device_bytes") == 2 << 30
    assert page.limit("peak_host_bytes") == 3 << 30
    assert page.limit("median_step_s") is None, "that is a least value"
    assert page.limit("peak_rss_bytes") is None


def test_where_the_device_has_no_memory_the_chart_shows_the_hosts() -> None:
    shown = pictures(report(replace(record(), memory=MemoryPeaks(None, 3000, 4000))))
    assert "Peak host memory of one rank. Less is better" in drawn(shown["throughput-memory"], narrow=False)


def test_a_chart_has_40_rows_or_200_points_at_most() -> None:
    page = report(record())
    shown = pictures(replace(page, summaries=[*page.summaries] * 201))
    assert shown["throughput-memory"].description.startswith("200 configurations.")
    for name in ("step-times", "memory", "phases"):
        assert shown[name].description.startswith("40 configurations"), name


@pytest.mark.parametrize("figure", [1, 0, None])
def test_memory_and_phases_are_drawn_where_any_was_counted(figure: int | None) -> None:
    sizes = {} if figure is None else {"parameters": figure}
    timing = record().timing
    assert timing is not None
    memory = MemoryPeaks(1000, 0, 1000, sizes)
    page = report(replace(record(), memory=memory, timing=replace(timing, phases=sizes)))
    assert [name in pictures(page) for name in ("memory", "phases")] == [bool(figure)] * 2


def test_memory_of_a_category_is_the_largest_of_the_repeats_that_counted_it() -> None:
    repeats = [
        replace(record(repeat=n), memory=MemoryPeaks(1000, 0, 1000, sizes))
        for n, sizes in enumerate([{"parameters": 1, "moments": 5}, {"parameters": 3}])
    ]
    assert categories(report(*repeats).finished[0]) == {"parameters": 3, "moments": 5}


@pytest.mark.parametrize(("second", "is_drawn"), [(3, True), (1, False)])
def test_a_thin_line_reaches_from_the_least_to_the_largest_repeat(second: int, is_drawn: bool) -> None:
    repeats = []
    for n, size in enumerate([1, second]):
        one = record(repeat=n)
        assert one.timing is not None
        memory = MemoryPeaks(1000, 0, 1000, {"parameters": size << 20, "host_moments": size << 20})
        repeats.append(replace(one, memory=memory, timing=replace(one.timing, phases={"forward": size})))
    shown = pictures(report(*repeats))
    for name, y in (("memory", 0.55), ("memory", 0.83), ("phases", 0.66)):
        assert (f"line [[1.0, {y}], [3.0, {y}]]" in drawn(shown[name], narrow=False)) == is_drawn, name


@pytest.mark.parametrize(("limit", "marked"), [("<= 1000000", False), ("<= 999999", True)])
def test_a_peak_at_the_limit_is_within_it(limit: str, marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "sections", lambda report: [])
    page = render(report(record(peak=1_000_000), peak_device_bytes=limit))
    assert ("&gt; limit" in page) == marked


@pytest.mark.parametrize(("count", "told"), [(1, False), (2, True)])
def test_a_best_of_several_equals_is_called_one_of_them(
    count: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "sections", lambda report: [])
    page = render(report(*(record(axes={"zero_stage": stage}) for stage in range(count))))
    assert ("tied with 1 other, recommended" in page) == told


def test_a_change_is_a_dot_and_an_unknown_bound_is_drawn_as_a_factor_of_two() -> None:
    comparison = compare_runs(results(trial([0.1])), results(trial([0.13])), Settings())
    ((_, decision),) = comparison.timed
    assert (decision.low, decision.high) == (-math.inf, math.inf)
    section = charts.changes(replace(report(record()), comparison=comparison))
    assert section is not None
    marks = drawn(section.picture, narrow=False).splitlines()
    assert any(mark.startswith("line [[-50.0, 0.66], [100.0, 0.66]]") for mark in marks)
    assert any(mark.startswith("line [[30.0, 0.66]]") and "marker=o" in mark for mark in marks)


def test_a_dashed_line_joins_what_none_beats_by_steps_behind_the_marks() -> None:
    """Of these none beats another: each is faster than the last and needs more."""
    page = report(*(record(axes={"n": n}, step_s=10 / n, peak=n << 20) for n in (1, 2)))
    marks = drawn(pictures(page)["throughput-memory"], narrow=False)
    (line,) = [mark for mark in marks.splitlines() if "linestyle=--" in mark]
    assert line.startswith("line [[1.0, 100.0], [2.0, 100.0], [2.0, 200.0]] color=#59636e linewidth=1.5 ")
    assert "zorder=2" in line


@pytest.mark.parametrize(("steps", "dots"), [(24, 24), (25, 13), (48, 24), (49, 17)])
def test_of_many_steps_at_most_24_are_dots(steps: int, dots: int) -> None:
    one = record()
    assert one.timing is not None
    timing = replace(one.timing, step_seconds=[0.001 * (n + 1) for n in range(steps)])
    marks = drawn(pictures(report(replace(one, timing=timing)))["step-times"], narrow=False)
    (line,) = [mark for mark in marks.splitlines() if "marker=o" in mark]
    assert len(re.findall(r"\[[\d.]+, 0.66\]", line)) == dots


def trend_marks(changes: list[int], visits: int, *, narrow: bool) -> str:
    """Return what is drawn of a configuration's runs with these changes of level."""
    seen = tuple(Visit(f"run{n}", None, None, 0.1 + n / 100, 0.1, 0.2) for n in range(visits))
    (summary,) = results(trial([0.1])).trials
    series = Series(summary, {}, seen, tuple(Change(one, one / 100, None, None) for one in changes))
    return drawn(trend(series, "median_step_s", {visit.run_id: "" for visit in seen}), narrow=narrow)


def labels(changes: list[int], visits: int, *, narrow: bool) -> list[tuple[int, str]]:
    """Return the changes of a trend whose labels are drawn, and on which side of them their text begins."""
    marks = trend_marks(changes, visits, narrow=narrow)
    found = re.findall(r"text=  ?\+(\d+)\.0 %.* ha=(\w+)", marks)
    return [(int(change), side) for change, side in found]


@pytest.mark.parametrize(("narrow", "most", "right"), [(False, 200, 123), (True, 60, 39)])
def test_a_trend_draws_the_newest_runs_and_their_levels(narrow: bool, most: int, right: int) -> None:
    """Of the three runs that are left out, the first has a level of its own, and the others share one."""
    for late, side in ((right, "right"), (right - 1, "left")):
        assert labels([1, 3, late], most + 3, narrow=narrow) == [(late, side)]
    marks = trend_marks([1, 3, 9], most + 3, narrow=narrow)
    (dots,) = [mark for mark in marks.splitlines() if mark.startswith("dots")]
    assert dots.startswith("dots [[3.0, 0.13], ")
    assert dots.count("'run") == most
    assert re.findall(r"line \[\[([\d.]+), .* linewidth=3\.0", marks) == ["2.6", "8.6"]
    assert re.findall(r"line \[\[([\d.]+), .* linestyle=--", marks) == ["8.5"]


@pytest.mark.parametrize(("index", "side"), [(1, "left"), (3, "left"), (4, "right"), (5, "right")])
def test_a_changes_text_stays_within_the_picture(index: int, side: str) -> None:
    assert labels([index], 6, narrow=False) == [(index, side)]


@pytest.mark.parametrize(("narrow", "second"), [(False, 34), (True, 38)])
def test_no_changes_text_covers_another(narrow: bool, second: int) -> None:
    """Texts at the right end where their change is: 26 and, in the narrow picture, 34 would reach 13's."""
    changes = [13, 18, 26, 34, 38]
    assert labels(changes, 41, narrow=narrow) == [(13, "left"), (second, "right")]


@pytest.mark.parametrize(
    ("change", "low", "high", "drawn_to", "role"),
    [
        (0.2, 0.1, 0.3, "[[10.0, 0.66], [30.0, 0.66]]", "bad"), (0.2, None, None, None, "none"),
        (-0.2, -0.3, -0.1, "[[-30.0, 0.66], [-10.0, 0.66]]", "good"),
        (0.1, 0.0, 0.3, "[[0.0, 0.66], [30.0, 0.66]]", "none"),
        (-0.1, -0.3, 0.0, "[[-30.0, 0.66], [0.0, 0.66]]", "none"),
        (0.5, -0.9, 3.0, "[[-50.0, 0.66], [100.0, 0.66]]", "none"),
    ],
)  # fmt: skip
def test_an_interval_of_a_choice_is_drawn_up_to_a_factor_of_two_and_coloured_if_sure(
    change: float, low: float | None, high: float | None, drawn_to: str | None, role: str
) -> None:
    page, effect = report(record()), Effect("bucket", 100, "5 against 6", change, low, high, 2)
    section = charts.effects(replace(page, ranking=replace(page.ranking, effects=(effect,))))
    assert section is not None
    assert "text=against 5 against 6 " in drawn(section.picture, narrow=False)
    marks = re.findall(r"line (.*0\.66\]\]) color=(\S+)", drawn(section.picture, narrow=False))
    places = [drawn_to, f"[[{100 * change}, 0.66]]"]
    assert marks == [(place, style.LIGHT[role]) for place in places if place is not None]
