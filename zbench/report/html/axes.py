"""Parts that charts share: axes in readable units, rows with labels, hover areas, the memory limit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zbench.report.html import style
from zbench.report.html.drawing import Canvas
from zbench.report.text import printable
from zbench.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

BAR_MIDDLE = 0.66
"""Where a row's bar lies, from 0 at the row's top to 1 at its bottom; the label is above it."""

_LABEL = 0.24
_LIMIT_IN_VIEW = 3.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that values are drawn in, so that ticks are round numbers of it."""

    size: float
    name: str


BYTES = (
    Unit(2.0**40, "TiB"), Unit(2.0**30, "GiB"), Unit(2.0**20, "MiB"), Unit(2.0**10, "KiB"), Unit(1.0, "B")
)  # fmt: skip
SECONDS = (Unit(1.0, "s"), Unit(1e-3, "ms"), Unit(1e-6, "us"))


def readable(values: Sequence[float], units: Sequence[Unit]) -> Unit:
    """Return the largest unit of BYTES or SECONDS that is at most the largest value, else the smallest."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    return next((unit for unit in units if most >= unit.size), units[-1])


def scatter(canvas: Canvas, unit: str, across: str, up: str) -> None:
    """Give a scatter chart its grid, ticks in this unit, and the names of both axes."""
    axes = canvas.axes
    left, bottom = (0.14, 0.15) if canvas.narrow else (0.07, 0.14)
    axes.set_position((left, bottom, 0.97 - left, 0.93 - bottom))
    axes.margins(x=0.08, y=0.12)
    _ticks(axes, unit, 3 if canvas.narrow else 6)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    frame(axes, ("x", "y"))
    axes.spines["bottom"].set_visible(True)
    muted = style.LIGHT["muted"]
    axes.text(1, -0.155, across, transform=axes.transAxes, ha="right", color=muted)
    axes.text(0, 1.03, up, transform=axes.transAxes, ha="left", color=muted)


def runs(canvas: Canvas, form: Callable[[float], str], ends: Sequence[str]) -> None:
    """Give a trend its grid, its values as `form` writes them, and the dates of its first and last run."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = canvas.axes
    left = 0.22 if canvas.narrow else 0.1
    axes.set_position((left, 0.12, 0.97 - left, 0.76))
    axes.margins(x=0.02, y=0.15)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
    frame(axes, ("y",))
    axes.set_xticks([])
    for x, side, text in zip((0, 1), ("left", "right"), ends, strict=True):
        axes.text(x, -0.1, text, transform=axes.transAxes, ha=side, color=style.LIGHT["muted"])


def rows(canvas: Canvas, labels: Sequence[tuple[str, str, str]]) -> None:
    """Write each row's label (long, short) above its bar, and its figure at the right."""
    axes = canvas.axes
    across = axes.get_yaxis_transform()
    for index, (long, short, figure) in enumerate(labels):
        name = printable(short if canvas.narrow else long)
        axes.text(0, index + _LABEL, name, transform=across, va="center", color=style.LIGHT["ink"])
        axes.text(
            1, index + _LABEL, figure, transform=across, va="center", ha="right", color=style.LIGHT["muted"]
        )


def below(canvas: Canvas, unit: str, count: int) -> None:
    """Give a chart of rows its ticks in this unit below, and its grid."""
    axes = canvas.axes
    axes.margins(x=0.04)
    _ticks(axes, unit, 3 if canvas.narrow else 6)
    frame(axes, ("x",))
    axes.set_yticks([])
    axes.set_ylim(count, 0)
    box = axes.get_position()
    height = canvas.figure.get_figheight() * canvas.figure.dpi
    axes.set_position((box.x0, box.y0 + 28 / height, box.width, box.height - 34 / height))


def limit_line(canvas: Canvas, limit: float | None, unit: Unit) -> None:
    """Draw the memory limit as a dashed line; if it is beyond the chart, write it in the corner."""
    if limit is None:
        return
    axes, bad = canvas.axes, style.LIGHT["bad"]
    right = axes.get_xlim()[1]
    at = limit / unit.size
    text = f"limit {format_bytes(limit)}"
    if at > right * _LIMIT_IN_VIEW:
        axes.text(1, 1.03, f"{text}, beyond this chart", transform=axes.transAxes, ha="right", color=bad)
        return
    axes.set_xlim(right=max(right, at * 1.03))
    axes.axvline(at, color=bad, linewidth=1.5, linestyle="--", zorder=1)
    anchor = "right" if at > 0.5 * sum(axes.get_xlim()) else "left"
    above = axes.get_xaxis_transform()
    axes.text(at, 1.0 if axes.yaxis_inverted() else 1.03, f" {text} ", transform=above,
              ha=anchor, va="bottom", color=bad)  # fmt: skip


def hover_area(axes: "Axes", index: int) -> "Artist":
    """Return an invisible area over the whole row, for the pointer to meet."""
    return axes.axhspan(
        index + 0.02, index + 0.98, color=style.LIGHT["card"], alpha=0.004, linewidth=0, zorder=10
    )


def _ticks(axes: "Axes", unit: str, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {unit}"))


def frame(axes: "Axes", grids: Sequence[str]) -> None:
    """Hide the box, draw grid lines behind everything, and write tick labels in the muted colour."""
    for spine in axes.spines.values():
        spine.set_visible(False)
        spine.set_color(style.LIGHT["line"])
    axes.set_axisbelow(True)
    for which in grids:
        axes.grid(axis=which, color=style.LIGHT["grid"], linewidth=1)  # type: ignore[arg-type]
    axes.tick_params(length=0, labelcolor=style.LIGHT["muted"], pad=5)
