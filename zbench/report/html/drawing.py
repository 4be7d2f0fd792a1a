"""Pictures drawn by matplotlib as SVG: text stays text, values appear on hover, colours follow the theme.

A picture is drawn twice, for wide and for narrow screens, and the style sheet shows one of them. matplotlib
is imported when the first picture is drawn.
"""

import logging
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

from zbench.report.html import style
from zbench.report.text import printable, xml_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure

WIDE, NARROW = 960, 380
"""Widths of the two drawings, in pixels."""

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_FONT = 12
_POINTS_PER_INCH = 72
_TITLE, _LEGEND, _EDGE = 40, 26, 14
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text as <text>: it can be selected, searched and read aloud
    "text.parse_math": False,  # a `$` in a name is a dollar sign
    "font.family": ["DejaVu Sans"],  # comes with matplotlib; the style sheet then asks for the system's font
    "font.size": _FONT,
}

Legend = Sequence[tuple[str, str]]
"""Colour role (see `style`) and name of each series."""


@dataclass(slots=True)
class Canvas:
    """The drawing area of a chart: axes in a figure, and the texts that appear on hover."""

    figure: "Figure"
    axes: "Axes"
    narrow: bool
    hovers: dict[str, str] = field(default_factory=dict)

    def hover(self, artist: "Artist", text: str) -> None:
        """Show this text when the pointer is on the artist."""
        gid = f"hover{len(self.hovers)}"
        artist.set_gid(gid)
        self.hovers[gid] = text

    def link(self, dots: "Collection", places: Sequence[tuple[str, str]]) -> None:
        """Link each dot of a collection to an address, and show its text when the pointer is on it."""
        dots.set_facecolor([*dots.get_facecolor()] * 2)  # matplotlib draws dots of one colour without links
        dots.set_urls([address for address, _ in places])
        self.hovers |= dict(places)


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart: its name, title and description (one sentence), height in pixels, and drawing function."""

    name: str
    title: str
    description: str
    height: float
    paint: Callable[[Canvas], None]
    legend: Legend = ()

    def inline(self) -> str:
        """Return the SVG elements for the page: one for wide and one for narrow screens."""
        return "".join(self._drawn(width, f"{self.name}-{width}", file=False) for width in (WIDE, NARROW))

    def file(self) -> str:
        """Return a standalone SVG file with title and legend; dark in viewers that are in dark mode."""
        return '<?xml version="1.0" encoding="utf-8"?>\n' + self._drawn(WIDE, self.name, file=True)

    def _drawn(self, width: int, prefix: str, *, file: bool) -> str:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        top = (_TITLE + (_LEGEND if self.legend else 0)) if file else 0
        height = self.height + top
        settings: Any = _SETTINGS | {"svg.hashsalt": prefix}  # makes the ids
        with rc_context(settings), warnings.catch_warnings(action="ignore"):
            # characters that matplotlib's own font lacks: the viewer's font draws them
            logging.getLogger("matplotlib").setLevel(logging.ERROR)
            size = (width / _POINTS_PER_INCH, height / _POINTS_PER_INCH)
            figure = Figure(size, dpi=_POINTS_PER_INCH, facecolor=style.LIGHT["card"] if file else "none")
            area = (_EDGE / width, 0.0, 1 - 2 * _EDGE / width, self.height / height)
            axes = figure.add_axes(area, facecolor="none")
            canvas = Canvas(figure, axes, narrow=width == NARROW)
            self.paint(canvas)
            if file:
                self._head(figure, width, height)
            text = StringIO()
            figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        root = ET.fromstring(xml_text(text.getvalue()))
        self._finish(root, canvas, prefix, file=file)
        ET.register_namespace("", _SVG)
        ET.register_namespace("xlink", _XLINK)
        return ET.tostring(root, encoding="unicode")

    def _head(self, figure: "Figure", width: int, height: float) -> None:
        """Write the title and the legend above the chart."""
        from matplotlib.patches import Patch

        left = _EDGE / width
        figure.text(
            left, 1 - 24 / height, self.title, size=_FONT + 2, weight="bold", color=style.LIGHT["ink"]
        )
        if self.legend:
            marks = [Patch(color=style.LIGHT[role], label=printable(name)) for role, name in self.legend]
            figure.legend(
                handles=marks, loc="upper left", bbox_to_anchor=(left, 1 - (_TITLE - 8) / height), ncols=8,
                frameon=False, borderpad=0, borderaxespad=0, labelcolor=style.LIGHT["muted"], handlelength=1,
            )  # fmt: skip

    def _finish(self, root: ET.Element, canvas: Canvas, prefix: str, *, file: bool) -> None:
        """Name the picture for screen readers, add hover texts, make ids unique, and hand colours to CSS."""
        for parent in list(root.iter()):
            for child in parent.findall(f"{{{_SVG}}}style"):
                parent.remove(child)
        for group in root.iter(f"{{{_SVG}}}g"):  # nothing refers to a group: its id need not stay
            text = canvas.hovers.get(group.attrib.pop("id", ""))
            if text is not None:
                group.insert(0, _element("title", text))
        for anchor in root.iter(f"{{{_SVG}}}a"):
            del anchor.attrib["target"]
            anchor.insert(0, _element("title", canvas.hovers[anchor.attrib[f"{{{_XLINK}}}href"]]))
        for place, (tag, text) in enumerate((("title", self.title), ("desc", self.description))):
            root.insert(place, _element(tag, printable(text), id=f"{prefix}-{tag}"))
        root.attrib |= {"role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc"}
        root.attrib["stroke-linejoin"] = "round"
        if file:
            root.append(_element("style", style.drawing_sheet()))
        else:
            root.attrib["class"] = "narrow" if canvas.narrow else "wide"
            root.attrib.pop("width")
            root.attrib.pop("height")


def _element(tag: str, text: str, **attributes: str) -> ET.Element:
    element = ET.Element(f"{{{_SVG}}}{tag}", attributes)
    element.text = xml_text(text)
    return element
