"""Each format of `zbench compare` keeps the promises of exporters."""

import csv
import io
import json
import xml.etree.ElementTree as ET

import pytest

from tests.report.exports import test_formats
from zbench.analysis.compare import Comparison
from zbench.testing.reporting import ExporterSuite


class Suite(ExporterSuite):
    @pytest.fixture
    def comparison(self) -> Comparison:
        return test_formats.comparison()

    @pytest.fixture
    def hostile(self) -> Comparison:
        return test_formats.hostile()


class TestMarkdown(Suite):
    format = "markdown"

    def check_syntax(self, text: str) -> None:
        table = [line.replace("\\|", "") for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in table}) == 1


class TestJson(Suite):
    format = "json"

    def check_syntax(self, text: str) -> None:
        json.loads(text)


class TestCsv(Suite):
    format = "csv"

    def check_syntax(self, text: str) -> None:
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        assert all(None not in row and None not in row.values() for row in rows)


class TestJunit(Suite):
    format = "junit"

    def check_syntax(self, text: str) -> None:
        ET.fromstring(text)
