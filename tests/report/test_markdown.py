"""A run's table in Markdown: the best first and in bold, every row as wide as the headings."""

from dataclasses import replace

from zbench.report.exports.markdown import render_run

from .html.samples import full


def test_the_best_is_bold_and_every_row_has_all_cells() -> None:
    report = full()
    lines = render_run(report).splitlines()
    headings, rule, *rows = lines[: 2 + len(report.summaries)]
    assert headings.startswith("| configuration | trial | tokens/s |")
    assert {line.count("|") for line in (headings, rule, *rows)} == {headings.count("|")}
    assert [row.startswith("| **") for row in rows].count(True) == 1
    assert lines[len(rows) + 2] == ""
    assert lines[-1].startswith("Run r1; ")


def test_without_a_best_nothing_is_bold_and_a_failure_says_its_outcome() -> None:
    text = render_run(replace(full(), winner=None))
    assert "**" not in text
    assert "| oom |" in text
