"""Strange files and arguments: one clear message and a documented status, never an internal error."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.calling import only_run
from zbench.record import lines
from zbench.record.store import load_records


@pytest.fixture
def records(zbench, sweep_file) -> Path:
    """Return the file of records of a sweep that has ended."""
    assert zbench("sweep", sweep_file, "--repeats", "1").code == 0
    return only_run() / "trials.jsonl"


def test_records_with_strange_contents_are_shown_and_resumed(zbench, records):
    whole = load_records(records)
    for change in (
        {"outcome": "crashed", "error": None},
        {"config": {}},
        {"config": {"run": 3, "workload": {"options": "x"}}},
        {"axes": {}},
        {"memory": None, "warnings": ["w" * 1000]},
    ):
        strange = lines.encode_all(replace(record, **change) for record in whole)
        for command in (
            "show",
            "show --verbose",
            "show --json",
            "list",
            "report last",
            "sweep --resume last",
        ):
            records.write_bytes(strange)
            output = zbench(*command.split())
            assert output.code in (0, 2, 6), (change, output.err)
            assert "internal error" not in output.err


def test_exclude_that_matches_nothing_warns(zbench, sweep_file):
    sweep_file.write_text(sweep_file.read_text() + "exclude: [{zero_stage: 0}, {zero_stage: 3}]\n")
    output = zbench("plan", sweep_file)
    assert output.code == 0
    assert "exclude.1 matches no point" in output.err
    assert "exclude.0" not in output.err
