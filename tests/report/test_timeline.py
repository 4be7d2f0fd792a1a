"""The memory of a traced step in the units that are drawn."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from zbench.report.detail import trace_lines
from zbench.report.html.drawing import Canvas
from zbench.report.html.timelines import memory_timeline, stacked

SAMPLES = [
    {"seconds": 0.0, "device": {"parameters": 1 << 20}, "host": {}},
    {"seconds": 0.25, "device": {"parameters": 1 << 20, "activations": 3 << 19}, "host": {}},
]


def test_time_is_in_milliseconds_and_memory_in_mebibytes_with_gaps_filled() -> None:
    assert stacked(SAMPLES, "device") == ([0.0, 250.0], {"parameters": [1.0, 1.0], "activations": [0.0, 1.5]})
    assert stacked(SAMPLES, "host") == ([0.0, 250.0], {})


@pytest.mark.parametrize("limit", [None, 4 << 20])
def test_a_timeline_has_device_above_host_and_the_limit_over_the_device(limit: int | None) -> None:
    picture = memory_timeline({"samples": SAMPLES, "limit_bytes": limit}, "id1")
    figure = Figure()
    picture.paint(Canvas(figure, figure.add_subplot(), narrow=False))
    sheet, device, host = figure.axes
    titles = [axes.get_title(loc="left") for axes in (device, host)]
    assert titles == ["device memory (MiB)", "host memory (MiB)"]
    assert device.get_position().y0 > host.get_position().y1
    around = Bbox.union([axes.get_position() for axes in figure.axes])
    assert around.bounds == pytest.approx(sheet.get_position().bounds), "none leaves the picture"
    assert host.get_xlabel() == "time in the step (ms)"
    assert [axes.get_ylim()[0] for axes in figure.axes[1:]] == [0.0, 0.0]
    assert [name for _, name in picture.legend] == ["parameters", "activations"]
    assert [list(line.get_ydata()) for line in device.lines] == ([[4.0, 4.0]] if limit else [])
    notes = [(text.get_text(), text.get_position()) for text in device.texts]
    assert notes == ([("limit 4 MiB", (0, 4.0))] if limit else [])
    assert not host.lines


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
