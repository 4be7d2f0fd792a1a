"""The sheet that a picture is drawn on: its size, what stands above the chart, its ids and hover texts."""

import re
import xml.etree.ElementTree as ET

import pytest

from zbench.report.html.drawing import Canvas, Legend, Picture

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LEGEND = tuple(("s1", name) for name in NAMES)


class Painted:
    """Paints a line with a hover text on each sheet, and keeps the sheets."""

    def __init__(self) -> None:
        self.sheets: list[Canvas] = []

    def __call__(self, canvas: Canvas) -> None:
        (line,) = canvas.axes.plot([0.2, 0.8], [0.5, 0.5])
        canvas.hover(line, "a line")
        self.sheets.append(canvas)

    def area(self) -> list[float]:
        """Return left, bottom, width and height of the last sheet's chart, in pixels."""
        (sheet,) = self.sheets[-1:]
        width, height = sheet.figure.get_size_inches() * 72
        left, bottom, right, top = sheet.axes.get_position().extents * (width, height, width, height)
        return [left, bottom, right - left, top - bottom]


def picture(paint: Painted, legend: Legend = ()) -> Picture:
    return Picture("example", "An example", "It shows a line.", 100, paint, legend)


def test_a_page_has_a_drawing_of_960_and_one_of_380_pixels() -> None:
    paint = Painted()
    drawn = ET.fromstring(f"<both>{picture(paint, LEGEND).inline()}</both>")
    assert [svg.attrib["viewBox"] for svg in drawn] == ["0 0 960 100", "0 0 380 100"]
    assert [svg.attrib["class"] for svg in drawn] == ["wide", "narrow"]
    assert [sheet.narrow for sheet in paint.sheets] == [False, True]
    for svg in drawn:
        assert not {"width", "height"} & svg.attrib.keys(), "the page decides of the size"
        assert not list(svg.iter(f"{SVG}style")), "the page has the rules"
    assert not any(sheet.figure.texts or sheet.figure.legends for sheet in paint.sheets)


@pytest.mark.parametrize(("legend", "height"), [((), 140), (LEGEND, 166)])
def test_a_file_has_room_for_the_title_and_the_legend_above_the_chart(legend: Legend, height: int) -> None:
    paint = Painted()
    svg = ET.fromstring(picture(paint, legend).file())
    assert svg.attrib["viewBox"] == f"0 0 960 {height}"
    assert (svg.attrib["width"], svg.attrib["height"]) == ("960pt", f"{height}pt")
    assert "class" not in svg.attrib
    (title,) = paint.sheets[0].figure.texts
    assert title.get_text() == "An example"
    assert (title.get_size(), title.get_weight()) == (14, "bold")
    assert title.get_transform().transform(title.get_position()) == pytest.approx((14, height - 24))
    for marks in paint.sheets[0].figure.legends:
        assert [text.get_text() for text in marks.get_texts()] == list(NAMES)
        box = marks.get_window_extent()
        assert (box.x0, box.y1) == pytest.approx((14, height - 32), abs=1), "below the title"


def test_a_hover_text_is_the_first_thing_in_its_mark() -> None:
    svg = ET.fromstring(picture(Painted()).file())
    (mark,) = [group for group in svg.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert (mark[0].tag, mark[0].text) == (f"{SVG}title", "a line")
    assert len(mark) > 1


def test_ids_are_those_that_the_picture_refers_to() -> None:
    for drawn in ET.fromstring(f"<both>{picture(Painted()).inline()}</both>"):
        refers = {element.attrib[LINK] for element in drawn.iter() if LINK in element.attrib}
        refers |= set(re.findall(r"url\((#[^)]*)\)", ET.tostring(drawn, encoding="unicode")))
        names = {element.attrib["id"] for element in drawn.iter() if "id" in element.attrib}
        about = set(drawn.attrib["aria-labelledby"].split())
        assert about < names
        assert refers
        assert {name.removeprefix("#") for name in refers} == names - about
