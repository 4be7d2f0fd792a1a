"""Marks lie where the values say, every row can be hovered over, colours can be told apart and read."""

import xml.etree.ElementTree as ET

import pytest

from tests.analysis.synthetic import record, results
from zbench.record.record import VerdictName
from zbench.report.html import charts, style
from zbench.report.html.charts import Position, front_of
from zbench.spec.sweep import ObjectiveSpec

from .samples import full, hostile, pictures

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


def test_front_is_what_nothing_feasible_beats() -> None:
    def place(peak: int, rate: float, verdict: VerdictName = "identical") -> Position:
        (trial,) = results([record(axes={"peak": peak}, peak=peak, verdict=verdict)]).trials
        return Position(trial, peak, rate)

    small, fast, beaten = place(10, 100), place(20, 200, "equivalent"), place(25, 150)
    wrong, large = place(5, 500, "wrong"), place(90, 900)
    limit = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 50"})
    assert front_of([beaten, fast, wrong, large, small], limit) == [small, fast]
    assert front_of([wrong], limit) == []


def test_every_picture_is_a_file_that_says_what_it_shows() -> None:
    drawn = pictures(full())
    assert list(drawn) == ["throughput-memory", "changes", "step-times", "memory", "phases"]
    for name, picture in drawn.items():
        assert picture.file() == picture.file(), "drawing twice gives the same file"
        root = ET.fromstring(picture.file())
        assert root.attrib["role"] == "img"
        words = {child.attrib.get("id"): child.text for child in root}
        assert root.attrib["aria-labelledby"] == f"{name}-title {name}-desc"
        assert words[f"{name}-title"] == picture.title
        assert words[f"{name}-desc"] == picture.description
        assert "prefers-color-scheme: dark" in picture.file()
        assert [text.text for text in root.iter(f"{SVG}text")], "text is text, not outlines"


def test_a_configuration_over_the_limit_is_not_called_the_fastest() -> None:
    report = full()
    assert max(place.rate for place in charts.places(report)) == 10_000
    picture = pictures(report)["throughput-memory"]
    assert "zero_stage=1" in picture.description
    assert "zero_stage=0" not in picture.description


def test_hostile_text_stays_text_in_files() -> None:
    for picture in pictures(hostile()).values():
        root = ET.fromstring(picture.file())
        names = {element.tag.split("}")[1] for element in root.iter()}
        assert not names & {"script", "img", "image", "foreignObject", "a"}
        assert all(element.attrib.get(LINK, "#").startswith("#") for element in root.iter())


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
