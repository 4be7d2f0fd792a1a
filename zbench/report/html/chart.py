"""What all charts share: a scale, its ticks, and the frame that names a picture for a screen reader.

Horizontal positions are shares of the width, given as percentages, and vertical ones pixels. So a chart fills
a phone as well as a wide screen without its text growing or shrinking.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zbench.report.html import style
from zbench.report.html.markup import Markup, join, tag

FILE_WIDTH = 840
"""Width in pixels of a picture written to a file."""

_EDGE = 1.5
_TITLE_HEIGHT, _LEGEND_HEIGHT, _LETTER = 48, 20, 7


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to percentages of the width; `edge` is left free at both ends."""

    low: float
    high: float
    edge: float = _EDGE

    @classmethod
    def around(cls, values: Sequence[float], *, include: Sequence[float] = (), room: float = 0.04) -> "Scale":
        """Return a scale over finite values with `room` (a share of their range) on either side."""
        finite = [value for value in (*values, *include) if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        span = (high - low) or abs(high) or 1.0
        return cls(low - room * span, high + room * span)

    def share(self, value: float) -> float:
        """Return where a value lies, from 0 at `low` to 1 at `high`; values outside are held at the ends."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def percent(self, value: float) -> str:
        """Return a value's horizontal position."""
        return f"{self.edge + self.width(1.0) * self.share(value):.2f}%"

    def width(self, share: float) -> float:
        """Return a share of the scale as a percentage of the picture's width."""
        return (100 - 2 * self.edge) * share

    def ticks(self, count: int = 5, steps: Sequence[float] = (1, 2, 5, 10)) -> list[float]:
        """Return about `count` round values inside the scale, `steps` being the round multiples."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * step for step in (*steps, 10 * steps[-1]) if power * step >= rough)
        first = math.ceil(self.low / step - 1e-9)
        found = [index * step for index in range(first, first + count + 2)]
        return [value for value in found if value <= self.high + 1e-9 * step]


def binary_ticks(scale: Scale, count: int = 5) -> list[float]:
    """Return round byte counts inside the scale: multiples of a power of two."""
    rough = max((scale.high - scale.low) / count, 1.0)
    step = 2.0 ** math.ceil(math.log2(rough))
    first = math.ceil(scale.low / step)
    return [index * step for index in range(first, first + count + 2) if index * step <= scale.high]


Legend = Sequence[tuple[str, str]]
"""Style class and name of each series."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart: what it is called, what it shows in a sentence, its height in pixels, and its marks."""

    name: str
    title: str
    description: str
    height: float
    marks: Markup
    legend: Legend = ()

    def inline(self) -> Markup:
        """Return the element for the page; its colours come from the page's style sheet."""
        return self._element(width="100%")

    def file(self) -> str:
        """Return a file of its own, colours included, that any viewer shows."""
        top = _TITLE_HEIGHT + (_LEGEND_HEIGHT if self.legend else 0)
        sheet = style.COLOURS.replace("color-scheme: light dark;", "") + style.MARKS
        body = join(
            tag("style", Markup(sheet)),
            tag("rect", width="100%", height="100%", style="fill: var(--card)"),
            tag("text", self.title, x=16, y=26, class_="strong"),
            *self._legend_marks(_TITLE_HEIGHT),
            tag(
                "svg", self.marks, x=16, y=top, width=FILE_WIDTH - 32, height=self.height, overflow="visible"
            ),
        )
        size = {"width": FILE_WIDTH, "height": top + self.height + 12}
        return self._element(body, xmlns="http://www.w3.org/2000/svg", **size)

    def _legend_marks(self, y: float) -> Iterator[Markup]:
        x = 16.0
        for kind, name in self.legend:
            yield tag("rect", x=x, y=y - 9, width=10, height=10, class_=kind)
            yield tag("text", name, x=x + 15, y=y)
            x += 32 + _LETTER * len(name)

    def _element(self, body: Markup | None = None, **attributes: str | float) -> Markup:
        names = f"{self.name}-title {self.name}-desc"
        return tag(
            "svg",
            tag("title", self.title, id=f"{self.name}-title"),
            tag("desc", self.description, id=f"{self.name}-desc"),
            self.marks if body is None else body,
            **({"height": self.height} | attributes),
            role="img",
            aria_labelledby=names,
        )


def vertical_grid(
    scale: Scale, ticks: Sequence[float], height: float, form: Callable[[float], str]
) -> Markup:
    """Return grid lines from top to bottom with their values below; the outermost texts stay inside."""
    marks = []
    for tick in ticks:
        x, share = scale.percent(tick), scale.share(tick)
        anchor = "start" if share < 0.06 else "end" if share > 0.94 else "middle"
        marks += [
            tag("line", x1=x, x2=x, y1=0, y2=height, class_="grid"),
            tag("text", form(tick) if tick else "0", x=x, y=height + 16, text_anchor=anchor),
        ]
    return join(*marks)


def rows_note(shown: int, total: int) -> str:
    """Return what to say where a chart shows only some rows."""
    return (
        ""
        if shown == total
        else f" The first {shown} of {total} configurations are drawn; the table has all."
    )
