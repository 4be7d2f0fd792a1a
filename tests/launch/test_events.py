"""Progress lines are seen once each, and only when they are whole."""

import json

import pytest

from zbench.job.progress import ProgressTail


def line(step: int) -> dict[str, object]:
    return {"phase": "timed", "step": step, "steps": 3, "seconds": 0.1}


def written(*steps: int) -> str:
    return "".join(json.dumps(line(step)) + "\n" for step in steps)


def test_lines_are_seen_once_and_whole(tmp_path):
    file = tmp_path / "progress.jsonl"
    tail = ProgressTail(file)
    assert tail.new_lines() == []
    whole, rest = written(1), written(2, 3)
    file.write_text(whole + rest[:3])
    assert tail.new_lines() == [line(1)]
    assert tail.new_lines() == []
    with file.open("a") as out:
        out.write(rest[3:])
    assert tail.new_lines() == [line(2), line(3)]


@pytest.mark.parametrize("other", ["\0" * 40, "\xff"])
def test_a_line_that_a_network_file_system_shows_before_its_bytes_is_skipped(tmp_path, other):
    file = tmp_path / "progress.jsonl"
    file.write_text(other + "\n" + written(1), encoding="latin-1")
    assert ProgressTail(file).new_lines() == [line(1)]
