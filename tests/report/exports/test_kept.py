"""Every format of one comparison, whole: a change shows in tests/report/kept."""

import functools
import io
from pathlib import Path

import pytest

from tests.analysis.synthetic import results, trial
from tests.keeping import check
from zbench.analysis.compare import compare_runs
from zbench.analysis.exact import ExactAnswer, ExactChange
from zbench.analysis.settings import Settings
from zbench.report.exports import csv as csv_format
from zbench.report.exports import document, junit, markdown, table, texts
from zbench.report.screen import Screen

from .test_formats import comparison


def as_table(width: int = 200, *, terminal: bool = False) -> str:
    text = io.StringIO()
    screen = Screen(file=text, width=width, force_terminal=terminal, _environ={"TERM": "xterm"})
    table.print_comparison(comparison(), screen)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


KEPT = Path(__file__).parents[1] / "kept"
FORMATS = {
    "compare.json": lambda: document.render(comparison()),
    "compare.md": lambda: markdown.render(comparison()),
    "compare.csv": lambda: csv_format.render(comparison()),
    "compare.junit.xml": lambda: junit.render(comparison()),
    "compare.txt": as_table,
    **{
        f"compare-{width}-terminal.txt": functools.partial(as_table, width, terminal=True)
        for width in (80, 160)
    },
    "summary.txt": lambda: "\n".join(texts.summary(comparison())),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_is_kept(name: str) -> None:
    check(KEPT / name, FORMATS[name]())


def test_figures_that_changed_are_folded_before_any_is_left_out() -> None:
    head = results(trial([0.2, 0.21, 0.2], verdict="equivalent", peak=2_000_000, traffic=8_000_000), "head")
    out = io.StringIO()
    screen = Screen(file=out, width=128, force_terminal=True, no_color=True, _environ={"TERM": "xterm"})
    table.print_comparison(compare_runs(results(trial([0.1, 0.11, 0.1])), head, Settings()), screen)
    assert "no room" not in out.getvalue()
    below = next(line for line in out.getvalue().splitlines() if "  equivalent" in line)
    assert "1.91 MiB, +100.0 %  7.63 MiB, +100.0 %" in below


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0491, "+4.9 %"),
        (10.0, "x11.0"),
        (0.00049, "+0.05 %"),
        (0.000149, "+0.01 %"),
    ],
)
def test_a_small_percentage_keeps_a_digit(fraction: float, text: str) -> None:
    assert texts.percent(fraction) == text


@pytest.mark.parametrize(
    ("metric", "base", "head", "answer", "text"),
    [
        ("traffic_bytes", 1024, 1024, "same", "1 KiB"),
        ("traffic_bytes", 1024, 2048, "regression", "1 KiB -> 2 KiB, +100.0 %"),
        ("memory.moments", 0, 1024, "higher", "0 B -> 1 KiB"),
        ("peak_device_bytes", 1_000_000, 1_000_001, "higher", "1000000 B -> 1000001 B, +0.0001 %"),
        ("operators", 10, 12, "varies", "10 -> 12, +20.0 % (varies)"),
        ("peak_device_bytes", 1024, 2048, "estimated", "1 KiB -> 2 KiB, +100.0 % (estimated)"),
        ("operators", None, 12, "unchecked", "none -> 12 (unchecked)"),
        ("operators", 12, None, "absent", "-"),
    ],
)
def test_an_exact_figure_before_and_after(
    metric: str, base: int | None, head: int | None, answer: ExactAnswer, text: str
) -> None:
    assert texts.exact_value(ExactChange(metric, base, head, answer)) == text
