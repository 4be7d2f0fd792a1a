"""What a page and its charts do with limits: of memory, of rows, of what is known."""

import re
from dataclasses import replace

import pytest

from tests.analysis.synthetic import record, results
from tests.keeping import drawn
from zbench.analysis.effects import Effect
from zbench.record.record import MemoryPeaks, Record
from zbench.report.html import charts, style
from zbench.report.html.content import Report, report_of
from zbench.report.html.page import render
from zbench.spec.sweep import ObjectiveSpec

from .samples import pictures


def report(*records: Record, **limits: str) -> Report:
    base = report_of(results(records))
    return replace(base, objective=ObjectiveSpec(maximize=["tokens_per_s"], subject_to=limits))


def test_the_limit_of_a_metric_is_its_largest_allowed_value() -> None:
    page = report(record(), peak_device_bytes="<= 2Gi", peak_host_bytes="< 3Gi", median_step_s=">= 1s")
    assert page.limit("peak_device_bytes") == 2 << 30
    assert page.limit("peak_host_bytes") == 3 << 30
    assert page.limit("median_step_s") is None, "that is a least value"
    assert page.limit("peak_rss_bytes") is None


def test_without_device_memory_the_chart_shows_host_memory() -> None:
    shown = pictures(report(replace(record(), memory=MemoryPeaks(None, 3000, 4000))))
    assert "Peak host memory of one rank. Less is better" in drawn(shown["throughput-memory"], narrow=False)


def test_a_chart_has_40_rows_or_200_points_at_most() -> None:
    page = report(record())
    shown = pictures(replace(page, summaries=[*page.summaries] * 201))
    assert shown["throughput-memory"].description.startswith("200 configurations.")
    for name in ("step-times", "memory", "phases"):
        assert shown[name].description.startswith("40 configurations"), name


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


def test_a_dashed_line_joins_the_points_that_none_beats() -> None:
    """Of these none beats another: each is faster than the last and needs more."""
    page = report(*(record(axes={"n": n}, step_s=10 / n, peak=n << 20) for n in (1, 2)))
    marks = drawn(pictures(page)["throughput-memory"], narrow=False)
    (line,) = [mark for mark in marks.splitlines() if "linestyle=--" in mark]
    assert line.startswith("line [[1.0, 100.0], [2.0, 100.0], [2.0, 200.0]] color=#59636e linewidth=1.5 ")
    assert "zorder=2" in line


@pytest.mark.parametrize(
    ("change", "low", "high", "drawn_to", "role"),
    [
        (0.2, 0.1, 0.3, "[[10.0, 0.66], [30.0, 0.66]]", "bad"),
        (0.2, None, None, None, "none"),
        (0.5, -0.9, 3.0, "[[-50.0, 0.66], [100.0, 0.66]]", "none"),
    ],
)  # fmt: skip
def test_an_interval_is_drawn_to_a_factor_of_two(
    change: float, low: float | None, high: float | None, drawn_to: str | None, role: str
) -> None:
    page, effect = report(record()), Effect("bucket", 100, "5 against 6", change, low, high, 2)
    section = charts.effects(replace(page, ranking=replace(page.ranking, effects=(effect,))))
    assert section is not None
    assert "text=against 5 against 6 " in drawn(section.picture, narrow=False)
    marks = re.findall(r"line (.*0\.66\]\]) color=(\S+)", drawn(section.picture, narrow=False))
    places = [drawn_to, f"[[{100 * change}, 0.66]]"]
    assert marks == [(place, style.LIGHT[role]) for place in places if place is not None]
