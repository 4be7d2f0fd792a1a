"""Marks lie where the values say, every row can be hovered over, colours can be told apart and read."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from zbench.report.html import axes, charts, content, style
from zbench.report.html.charts import Point, front_of

from .samples import LIMIT, full, hostile

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


def hovered(picture: str) -> list[tuple[str, ET.Element]]:
    """Return each hover text of a picture with the group that it belongs to."""
    groups = [(group.find(f"{SVG}title"), group) for group in ET.fromstring(picture).iter(f"{SVG}g")]
    return [(title.text or "", group) for title, group in groups if title is not None]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([2.0**40], "TiB"),
        ([3e9], "GiB"),
        ([5e6, 1.0], "MiB"),
        ([2000], "KiB"),
        ([7], "B"),
        ([], "B"),
        ([float("inf")], "B"),
    ],
)
def test_bytes_are_drawn_in_a_unit_that_reads_well(values: list[float], unit: str) -> None:
    found = axes.readable(values, axes.BYTES)
    assert found.name == unit
    assert found.size == {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}[unit]


@pytest.mark.parametrize(("values", "unit"), [([2.0], "s"), ([0.5, 0.1], "ms"), ([1e-5], "us"), ([], "us")])
def test_times_are_drawn_in_a_unit_that_reads_well(values: list[float], unit: str) -> None:
    found = axes.readable(values, axes.SECONDS)
    assert found.name == unit
    assert found.size == {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


def test_front_is_what_nothing_feasible_beats() -> None:
    small = Point("small", 10, 100, "identical")
    fast = Point("fast", 20, 200, "equivalent")
    beaten = Point("beaten", 25, 150, "identical")
    wrong = Point("wrong", 5, 500, "wrong", ("wrong",))
    large = Point("large", 90, 900, "identical", ("peak_device_bytes <= 50 B (has 90 B)",))
    assert front_of([beaten, fast, wrong, large, small]) == [small, fast]
    assert front_of([wrong]) == []


def test_verdicts_differ_in_shape_too() -> None:
    assert len(set(charts._MARKERS.values())) == len(style.VERDICTS) == 5


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
        assert [text.text for text in root.iter(f"{SVG}text")], "text is text, not outlines"


def test_drawing_twice_gives_the_same_file() -> None:
    picture = content.pictures(full())["memory"]
    assert picture.file() == picture.file()


def test_hovering_shows_the_configuration_and_its_figures() -> None:
    pictures = content.pictures(full())
    for name in ("throughput-memory", "step-times", "memory", "phases"):
        texts = [text for text, _ in hovered(pictures[name].inline().split("</svg>")[0] + "</svg>")]
        assert len(texts) == 4, name
        first = next(text for text in texts if "zero_stage=0" in text)
        assert "10,000 tokens/s, 100 ms per step" in first
        assert "device 9.54 MiB, host 19.1 MiB" in first
        assert "cannot be the best: peak_device_bytes <= 9.06 MiB (has 9.54 MiB)" in first


def test_a_configuration_over_the_limit_is_not_called_the_fastest() -> None:
    report = full()
    assert max(point.tokens_per_s for point in content.points(report)) == 10_000
    picture = content.pictures(report)["throughput-memory"]
    assert "zero_stage=1" in picture.description
    assert "zero_stage=0" not in picture.description


@pytest.mark.parametrize("name", ["throughput-memory", "memory"])
def test_the_limit_is_drawn_or_said_to_be_far_away(name: str) -> None:
    def texts(limit: float | None) -> list[str]:
        report = full()
        bounds = {} if limit is None else {"peak_device_bytes": f"<= {limit:.0f}"}
        changed = replace(report, objective=report.objective.model_copy(update={"subject_to": bounds}))
        root = ET.fromstring(content.pictures(changed)[name].file())
        return [(text.text or "").strip() for text in root.iter(f"{SVG}text") if "limit" in (text.text or "")]

    assert texts(LIMIT) == ["limit 9.06 MiB"]
    assert texts(1e12) == ["limit 931 GiB, beyond this chart"]
    assert texts(None) == []


def test_hostile_text_stays_text_in_files() -> None:
    for picture in content.pictures(hostile()).values():
        root = ET.fromstring(picture.file())
        names = {element.tag.split("}")[1] for element in root.iter()}
        assert not names & {"script", "img", "image", "foreignObject", "a"}
        assert all(element.attrib.get(LINK, "#").startswith("#") for element in root.iter())


def test_dollar_signs_are_no_formula() -> None:
    picture = charts.importance({r"$\frac{1}$": 1.0, "$": 0.5})
    texts = [text.text for text in ET.fromstring(picture.file()).iter(f"{SVG}text")]
    assert r"$\frac{1}$" in texts


def test_device_and_host_memory_are_bars_of_their_own() -> None:
    ((_, first), *_) = content.memory_rows(full().finished)
    assert content.device_parts(first) == {"parameters": 5e6, "gradients": 2.5e6, "moments": 5e5}
    assert content.host_parts(first) == {"moments": 3e6}
    root = ET.fromstring(content.pictures(full(1))["memory"].file())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "7.63 MiB + 2.86 MiB host" in texts


def test_charts_of_many_rows_draw_some_and_say_so() -> None:
    pictures = content.pictures(full(60))
    assert len(hovered(pictures["step-times"].file())) == content.MOST_ROWS


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
    colours = style.DARK if mode == "dark" else style.LIGHT
    for name in ("ink", "muted", "good", "fine", "warn", "bad", "accent"):
        for ground in ("card", "page"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["none"], colours["card"]) >= 3
    assert len({colours[name] for name in style.SERIES}) == len(style.SERIES)


def test_each_colour_has_one_dark_counterpart() -> None:
    """A picture's colours are replaced by value, so no two roles may share a light colour."""
    assert style.LIGHT.keys() == style.DARK.keys()
    assert len(set(style.LIGHT.values())) == len(style.LIGHT)


@pytest.mark.parametrize(
    ("second", "narrow", "shown"),
    [
        ((0.545, 0.5), False, True),
        ((0.535, 0.5), False, False),
        ((0.5, 0.575), False, True),
        ((0.5, 0.565), False, False),
        ((0.63, 0.5), True, True),
        ((0.61, 0.5), True, False),
    ],
)
def test_a_number_that_would_cover_another_is_left_out(
    second: tuple[float, float], narrow: bool, shown: bool
) -> None:
    figure = Figure()
    sheet = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, 1), ylim=(0, 1))
    axes.numbers(SimpleNamespace(axes=sheet, narrow=narrow), [(0.5, 0.5), second])  # type: ignore[arg-type]
    assert [text.get_text() for text in sheet.texts] == (["1", "2"] if shown else ["1"])
    assert sheet.texts[0].get_position() == pytest.approx((0.5, 0.54))


@pytest.mark.parametrize(("index", "role"), [(0, "s1"), (6, "s7"), (7, "s8"), (8, "s8"), (99, "s8")])
def test_series_beyond_the_palette_share_its_last_colour(index: int, role: str) -> None:
    assert style.series(index) == role
