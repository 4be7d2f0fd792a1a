"""The memory of a traced step in the units that are drawn."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from zbench.report.timeline import draw_timeline, stacked, trace_lines

SAMPLES = [
    {"seconds": 0.0, "device": {"parameters": 1 << 20}, "host": {}},
    {"seconds": 0.25, "device": {"parameters": 1 << 20, "activations": 3 << 19}, "host": {}},
]


def test_time_is_in_milliseconds_and_memory_in_mebibytes_with_gaps_filled() -> None:
    assert stacked(SAMPLES, "device") == ([0.0, 250.0], {"parameters": [1.0, 1.0], "activations": [0.0, 1.5]})


def test_a_kind_without_memory_has_no_stack() -> None:
    assert stacked(SAMPLES, "host") == ([0.0, 250.0], {})


@pytest.mark.parametrize("limit", [None, 4 << 20])
def test_a_timeline_has_device_above_host_and_the_limit_over_the_device(
    limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    document: dict[str, Any] = {"samples": SAMPLES} | ({"limit_bytes": limit} if limit else {})
    draw_timeline(document, tmp_path / "timeline.svg", "a trial")
    (figure,) = drawn
    device, host = figure.axes
    assert figure.get_suptitle() == "a trial"
    assert [axes.get_ylabel() for axes in figure.axes] == ["device memory (MiB)", "host memory (MiB)"]
    assert device.get_position().y0 > host.get_position().y0
    assert list(figure.get_size_inches()) == [9, 6]
    assert {axes.get_gridspec().get_geometry() for axes in figure.axes} == {(2, 1)}, "they share the height"
    assert host.get_xlabel() == "time in the step (ms)"
    assert [axes.get_ylim()[0] for axes in figure.axes] == [0.0, 0.0]
    assert [text.get_text() for text in device.get_legend().get_texts()] == ["parameters", "activations"]
    assert host.get_legend() is None
    assert [list(line.get_ydata()) for line in device.lines] == ([[4.0, 4.0]] if limit else [])
    said = [(text.get_text(), text.get_position()) for text in device.texts]
    assert said == ([("limit 4 MiB", (0, 4.0))] if limit else [])
    assert not host.lines


def test_a_timeline_is_written_the_same_at_every_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_timeline({"samples": SAMPLES}, tmp_path / name, "a trial")
    text = (tmp_path / "one.svg").read_text()
    assert "<dc:date>" not in text
    assert text.lstrip().startswith("<?xml")


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
