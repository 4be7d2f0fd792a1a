"""The comparison with a baseline: every configuration's change of step time with its interval."""

import math
from collections.abc import Sequence

from zbench.analysis.compare import Comparison, Row
from zbench.analysis.decision import Decision
from zbench.report.exports import texts
from zbench.report.html import axes as scales
from zbench.report.html import style
from zbench.report.html.drawing import Canvas, Picture
from zbench.report.labels import label, short_label
from zbench.report.text import plural

_WIDEST = math.log(2)
_ROW, _AXIS = 46, 34


def changes(comparison: Comparison, rows: Sequence[tuple[Row, Decision]]) -> Picture:
    """Return the picture; the dashed line is the margin beyond which a slowdown counts."""
    margin = math.expm1(rows[0][1].margin)

    def paint(canvas: Canvas) -> None:
        axes = canvas.axes
        labels = [(label(row.base), short_label(row.base), texts.interval(found)) for row, found in rows]
        scales.rows(canvas, labels)
        axes.axvline(0, color=style.LIGHT["muted"], linewidth=1.5)
        axes.axvline(100 * margin, color=style.LIGHT["bad"], linewidth=1.5, linestyle="--")
        for index, (row, found) in enumerate(rows):
            y, colour = index + scales.BAR_MIDDLE, style.LIGHT[style.ANSWERS[found.answer]]
            low, high = (100 * math.expm1(_held(bound)) for bound in (found.low, found.high))
            axes.plot([low, high], [y, y], color=colour, linewidth=3, alpha=0.55)
            axes.plot(100 * found.change, y, "o", color=colour, markersize=8)
            told = f"{label(row.base)}\n{texts.interval(found)}\n{found.answer}"
            canvas.hover(scales.hover_area(axes, index), told)
        scales.below(canvas, "%", len(rows))

    slower = sum(found.answer == "regression" for _, found in rows)
    description = (
        f"{plural(len(rows), 'configuration')} against {comparison.base.name}: {slower} slower by more than "
        f"{100 * margin:.3g} %."
    )
    title = "Change of step time against the baseline"
    return Picture("changes", title, description, _ROW * len(rows) + _AXIS, paint)


def _held(bound: float) -> float:
    """Return a bound (a log-ratio) that can be drawn: an unknown one ends at a factor of two."""
    return max(-_WIDEST, min(_WIDEST, bound))
