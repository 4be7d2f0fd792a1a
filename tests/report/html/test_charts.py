"""Scales and ticks are right, marks lie where the values say, colours can be told apart and read."""

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.report.html import content, scatter, style
from zbench.report.html.chart import Scale, binary_ticks
from zbench.report.html.scatter import Point, front_of, throughput_against_memory

from .samples import full, hostile

values = st.floats(1e-9, 1e15)


@given(st.lists(values, min_size=1, max_size=8))
def test_ticks_are_few_round_and_inside(samples: list[float]) -> None:
    scale = Scale.around(samples)
    for ticks in (scale.ticks(), binary_ticks(scale)):
        assert len(ticks) <= 7
        assert all(
            scale.low - 1e-6 * abs(scale.low) <= tick <= scale.high * (1 + 1e-6) + 1e-6 for tick in ticks
        )
    assert 0 <= scale.share(min(samples)) <= scale.share(max(samples)) <= 1


def test_round_ticks() -> None:
    assert Scale(0, 10).ticks() == [0, 2, 4, 6, 8, 10]
    assert Scale(0.081, 0.119).ticks() == pytest.approx([0.09, 0.1, 0.11])
    assert binary_ticks(Scale(0, 300 * 2**20)) == [0, 64 * 2**20, 128 * 2**20, 192 * 2**20, 256 * 2**20]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_values_that_are_not_finite_are_left_out_of_the_scale(bad: float) -> None:
    assert Scale.around([1.0, 2.0, bad]) == Scale.around([1.0, 2.0])


def test_front_is_what_nothing_correct_beats() -> None:
    small = Point("small", 10, 100, "identical")
    fast = Point("fast", 20, 200, "equivalent")
    beaten = Point("beaten", 25, 150, "identical")
    wrong = Point("wrong", 5, 500, "wrong")
    assert front_of([beaten, fast, wrong, small]) == [small, fast]
    assert front_of([wrong]) == []


def test_marks_lie_where_the_values_say() -> None:
    points = [
        Point("a", 1e6, 100, "identical"),
        Point("b", 2e6, 200, "wrong"),
        Point("c", 3e6, 150, "drifted"),
    ]
    picture = ET.fromstring(throughput_against_memory(points, "memory").file())
    marks = {}
    for holder in picture.iter("{http://www.w3.org/2000/svg}svg"):
        path = holder.find("{http://www.w3.org/2000/svg}path")
        if path is not None:
            marks[path.attrib["class"]] = float(holder.attrib["x"].rstrip("%")), float(holder.attrib["y"])
    (ax, ay), (bx, by), (cx, cy) = marks["identical"], marks["wrong"], marks["drifted"]
    assert bx - ax == pytest.approx(cx - bx, abs=0.02)
    assert ay > cy > by, "more tokens a second are higher up"
    assert (ay - by) == pytest.approx(2 * (ay - cy), abs=0.02)


def test_verdicts_differ_in_shape_too() -> None:
    assert len({scatter.shape(verdict).split(' d="')[1].split('"')[0] for verdict in scatter._SHAPES}) == 5


def test_every_picture_is_a_file_that_says_what_it_shows() -> None:
    pictures = content.pictures(full())
    assert list(pictures) == ["throughput-memory", "changes", "step-times", "memory", "phases", "importance"]
    for name, picture in pictures.items():
        root = ET.fromstring(picture.file())
        assert root.attrib["role"] == "img"
        words = {child.attrib.get("id"): child.text for child in root}
        assert root.attrib["aria-labelledby"] == f"{name}-title {name}-desc"
        assert words[f"{name}-title"] == picture.title
        assert words[f"{name}-desc"] == picture.description
        assert "prefers-color-scheme: dark" in picture.file()


def test_hostile_text_stays_text_in_files() -> None:
    for picture in content.pictures(hostile()).values():
        names = {element.tag.split("}")[1] for element in ET.fromstring(picture.file()).iter()}
        assert not names & {"script", "img", "image", "foreignObject", "a", "use"}


def test_stacks_add_up_to_the_whole() -> None:
    report = full(2)
    picture = ET.fromstring(content.pictures(report)["memory"].file())
    widths = [
        float(bar.attrib["width"].rstrip("%"))
        for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
        if "part" in bar.attrib.get("class", "")
    ]
    assert sum(widths[:2]) == pytest.approx(100, abs=0.01), "the largest configuration fills the width"
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3)


def test_charts_of_many_rows_draw_some_and_say_so() -> None:
    pictures = content.pictures(full(60))
    assert pictures["step-times"].file().count('class="median"') == content.MOST_ROWS


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_and_verdicts_are_readable(mode: str) -> None:
    """WCAG AA: 4.5 for text (verdict words too), 3 for marks; series are also named beside their colours."""
    light, dark = style.COLOURS.split("@media")
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", dark if mode == "dark" else light))
    for name in ("ink", "muted", "good", "fine", "warn", "bad"):
        for ground in ("card", "page"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["none"], colours["card"]) >= 3
    assert len({colours[name] for name in style.SERIES}) == len(style.SERIES)
