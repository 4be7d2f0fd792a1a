"""Columns: a figure is called, read and written in one place, and every format shows the same of it."""

import csv
import html
import io

import pytest

from tests.report.test_table import failed, record
from zbench.record.summary import summarize
from zbench.report.columns import RESULT, Column, DataTable, metric
from zbench.report.exports.csv import table_text
from zbench.report.exports.markdown import escape, table_lines
from zbench.report.html.page import table_html
from zbench.report.roles import ANSWERS
from zbench.report.screen import Screen, print_table

SUMMARIES = summarize([record(1, 500.0), record(2, 90.0, "wrong"), failed(3, "oom", "no room")])


def test_a_missing_value_is_a_dash_or_none() -> None:
    table = DataTable([metric("peak_device_bytes"), RESULT], SUMMARIES)
    assert table.titles == ["peak device", "verdict"]
    assert table.texts() == [["20 MiB", "identical"], ["20 MiB", "wrong"], ["-", "oom"]]
    assert table.documents()[0] == {"peak_device_bytes": 20 << 20, "verdict": "identical"}
    assert table.documents()[2] == {"peak_device_bytes": None, "verdict": "oom"}


@pytest.mark.parametrize("figure", ["a|b", "<b>", "=1+1", "x\ny", "\x1b[31m", "pass, faster"])
def test_every_format_shows_every_text(figure: str) -> None:
    columns = [Column("answer", str, title="answer & co", roles=ANSWERS), Column("length", len)]
    table = DataTable(columns, [figure, "plain"], marks=["*", ""])
    out = io.StringIO()
    print_table(Screen(file=out, width=100), table)
    page = table_html(table)
    lines = "\n".join(table_lines(table))
    for text in (*table.titles, *(cell for row in table.texts() for cell in row)):
        assert text.isprintable()
        assert text in out.getvalue()
        assert escape(text) in lines
        assert f">{html.escape(text)}<" in page
    rows = csv.DictReader(io.StringIO(table_text(table.documents())))
    assert [row["answer"].lstrip("'") for row in rows] == [row[0] for row in table.texts()]
