"""Strange files and arguments: one clear message and a documented status, never an internal error."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.calling import only_run
from zbench.record import lines
from zbench.record.store import load_records, new_run_id, resolve_run


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
        strange = b"".join(lines.encode(replace(record, **change)) for record in whole)
        for command in (
            "show",
            "show --verbose",
            "show --json",
            "list",
            "report last",
            "sweep --resume last",
        ):
            records.write_bytes(strange)
            said = zbench(*command.split())
            assert said.code in (0, 2, 6), (change, said.err)
            assert "internal error" not in said.err


def test_deeply_nested_line_is_damage(refusal, records):
    whole = records.read_text()
    for line in ("[" * 100_000, '{"schema_version": 1, "axes": ' + '{"a":' * 3_000):
        records.write_text(line + "\n" + whole)
        assert "trials.jsonl:1: damaged line" in refusal("show")


def test_last_is_the_latest_in_any_time_zone(monkeypatch, tmp_path):
    for zone in ("Asia/Tokyo", "UTC", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        run = tmp_path / "sweep" / new_run_id(tmp_path)
        run.mkdir(parents=True)
        for name in ("spec.yaml", "environment.json", "trials.jsonl"):
            (run / name).touch()
        assert resolve_run("last", tmp_path) == run
        time.sleep(0.002)
    monkeypatch.undo()
    time.tzset()


def test_exclude_that_matches_nothing_warns(zbench, sweep_file):
    sweep_file.write_text(sweep_file.read_text() + "exclude: [{zero_stage: 0}, {zero_stage: 3}]\n")
    said = zbench("plan", sweep_file)
    assert said.code == 0
    assert "exclude.1 matches no point" in said.err
    assert "exclude.0" not in said.err
