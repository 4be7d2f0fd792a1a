"""The memory of a traced step in the units that are drawn."""

import json
from pathlib import Path

from zbench.report.detail import trace_lines

SAMPLES = [
    {"seconds": 0.0, "device": {"parameters": 1 << 20}, "host": {}},
    {"seconds": 0.25, "device": {"parameters": 1 << 20, "activations": 3 << 19}, "host": {}},
]


def test_a_trace_is_told_by_its_bounds_and_drawn_once(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    assert not list(trace_lines(tmp_path, "id1")), "nothing was traced"
    bounds = {
        "reduce_bound": {"seconds": 0.05, "least_seconds": 0.04},
        "idle": {"seconds": 0.15, "least_seconds": None},
    }
    document = {"samples": SAMPLES, "seconds": 0.2, "bounds": bounds}
    (folder / "id1.memory.json").write_text(json.dumps(document))
    lines = dict(trace_lines(tmp_path, "id1"))
    assert lines["reduce bound"] == "50 ms (25% of the traced step, at least 40 ms)"
    assert lines["idle"] == "150 ms (75% of the traced step)"
    assert lines["trace"].startswith(f"{folder / 'id1.trace.json'} ")
    picture = Path(lines["memory timeline"])
    assert picture.read_text().lstrip().startswith("<?xml")
    picture.write_text("drawn before")
    assert dict(trace_lines(tmp_path, "id1")) == lines
    assert picture.read_text() == "drawn before"
