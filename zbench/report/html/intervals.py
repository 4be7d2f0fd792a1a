"""The comparison with a baseline: every configuration's change of step time with its interval."""

import math
from collections.abc import Sequence

from zbench.analysis.compare import Comparison, Row
from zbench.analysis.decision import Decision
from zbench.report.exports import words
from zbench.report.html.chart import Picture, Scale, vertical_grid
from zbench.report.html.markup import Markup, join, tag
from zbench.report.html.rows import BAR_MIDDLE, Name, row_chart
from zbench.report.labels import label, short_label

_WIDEST = math.log(2)


def changes(comparison: Comparison, rows: Sequence[tuple[Row, Decision]]) -> Picture:
    """Return the picture; the dashed line is the margin beyond which a slowdown counts."""
    margin = rows[0][1].margin
    ends = [
        max(-_WIDEST, min(_WIDEST, bound))
        for _, found in rows
        for bound in (found.low, found.high)
        if math.isfinite(bound)
    ]
    scale = Scale.around([math.expm1(end) for end in ends], include=(0.0, math.expm1(margin)))
    drawn = [
        (Name(label(row.base), short_label(row.base)), words.interval(found), _interval(scale, row, found))
        for row, found in rows
    ]
    slower = sum(found.answer == "regression" for _, found in rows)
    description = (
        f"{len(rows)} configurations against {comparison.base.name}: {slower} slower by more than "
        f"{100 * math.expm1(margin):.3g} %."
    )

    def axis(height: float) -> Markup:
        lines = [
            tag("line", x1=scale.percent(at), x2=scale.percent(at), y1=0, y2=height, class_=kind)
            for at, kind in ((0.0, "zero"), (math.expm1(margin), "margin"))
        ]
        return join(vertical_grid(scale, scale.ticks(), height, _tick), *lines)

    return row_chart("changes", "Change of step time against the baseline", description, drawn, axis)


def _tick(change: float) -> str:
    return f"{round(100 * change, 6):+g} %" if change else "0 %"


def _interval(scale: Scale, row: Row, found: Decision) -> Markup:
    y = BAR_MIDDLE
    low, high = (math.expm1(bound) if math.isfinite(bound) else None for bound in (found.low, found.high))
    left = scale.percent(scale.low if low is None else low)
    right = scale.percent(scale.high if high is None else high)
    told = f"{label(row.base)}: {words.interval(found)}, {found.answer}"
    return tag(
        "g",
        tag("title", told),
        tag("line", x1=left, x2=right, y1=y, y2=y, class_=found.answer, stroke_width=3, stroke_opacity=0.55),
        tag("circle", cx=scale.percent(found.change), cy=y, r=5, class_=found.answer),
    )
